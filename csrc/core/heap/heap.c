/* heap.c - the segments of a heap.
 *
 * They are a doubly linked list, the newest first, so that adding and removing one
 * takes constant time; a heap mostly has one or two. A block names its segment, and
 * only that its heap: so moving a segment to another heap touches no block in use, but
 * looks at all its blocks to enter the free ones there.
 */
#include "core/heap/heap.h"
#include "core/heap/index.h"

#include <stdlib.h>

oomph_status_t oomph_heap_init(oomph_heap_t *heap, oomph_slab_t *slab, bool small,
                               void *owner)
{
    size_t bin_count = small ? OOMPH_SMALL_BINS : OOMPH_LARGE_BINS;
    oomph_block_t **bins = calloc(bin_count, sizeof(oomph_block_t *));
    if (bins == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a pool");
    *heap = (oomph_heap_t){.owner = owner, .slab = slab, .small = small, .bins = bins};
    return OOMPH_OK;
}

void oomph_heap_destroy(oomph_heap_t *heap)
{
    oomph_assert(heap->segments == NULL);
    free(heap->bins);
    *heap = (oomph_heap_t){0};
}

size_t oomph_heap_record_bytes(const oomph_heap_t *heap)
{
    return (heap->small ? OOMPH_SMALL_BINS : OOMPH_LARGE_BINS) *
           sizeof(oomph_block_t *);
}

static void link_segment(oomph_segment_t *segment, oomph_heap_t *heap)
{
    segment->heap = heap;
    segment->prev = NULL;
    segment->next = heap->segments;
    if (heap->segments != NULL)
        heap->segments->prev = segment;
    heap->segments = segment;
}

static void unlink_segment(oomph_segment_t *segment)
{
    if (segment->prev != NULL)
        segment->prev->next = segment->next;
    else
        segment->heap->segments = segment->next;
    if (segment->next != NULL)
        segment->next->prev = segment->prev;
}

void oomph_heap_add(oomph_heap_t *heap, oomph_segment_t *segment,
                    oomph_block_state_t state, oomph_tier_t tier)
{
    oomph_block_t *block = oomph_slab_take(heap->slab);

    *block = (oomph_block_t){.addr = segment->base,
                             .bytes = segment->bytes,
                             .segment = segment,
                             .state = (uint8_t)state,
                             .tier = (uint8_t)tier};
    segment->first = segment->origin = block;
    link_segment(segment, heap);
    oomph_index_add(block);
}

void oomph_heap_remove(oomph_segment_t *segment)
{
    oomph_block_t *block = segment->first;

    oomph_assert(block->bytes == segment->bytes);
    oomph_index_drop(block);
    unlink_segment(segment);
    oomph_slab_give(segment->heap->slab, block);
    segment->first = NULL;
}

static bool is_indexed(const oomph_block_t *block)
{
    return block->state == OOMPH_BLOCK_FREE || block->state == OOMPH_BLOCK_HOLE;
}

void oomph_heap_move(oomph_segment_t *segment, oomph_heap_t *heap)
{
    oomph_assert(segment->heap->small == heap->small);
    for (oomph_block_t *b = segment->first; b != NULL; b = b->next)
        if (is_indexed(b))
            oomph_index_drop(b);
    unlink_segment(segment);
    link_segment(segment, heap);
    for (oomph_block_t *b = segment->first; b != NULL; b = b->next)
        if (is_indexed(b))
            oomph_index_add(b);
}
