/* lookup.c - the blocks and segments of a device, found and described.
 *
 * A segment is found by a walk over the segments of all pools: these are few, since
 * each has room for the whole card, and only reports ask, and what marks or moves
 * blocks. Within it the entry of the page names the block. Frees find their block in a
 * hash table (table.h).
 */
#include "core/device/lookup.h"

static size_t host_bytes(const oomph_block_t *block)
{
    const oomph_segment_t *segment = block->segment;
    oomph_addr_t end = oomph_block_end(block);
    size_t bytes = 0;

    if (!block->mixed_tier)
        return block->tier == OOMPH_TIER_HOST ? block->bytes : 0;
    for (size_t i = oomph_segment_page(segment, block->addr);
         oomph_segment_addr(segment, i) < end; i++)
        if (segment->entries[i].tier == OOMPH_TIER_HOST)
            bytes += oomph_min(oomph_segment_addr(segment, i + 1), end) -
                     oomph_max(oomph_segment_addr(segment, i), block->addr);
    return bytes;
}

void oomph_describe(const oomph_block_t *block, oomph_block_info_t *info)
{
    const oomph_pool_t *pool = oomph_block_pool(block);
    bool live =
        block->state == OOMPH_BLOCK_USED || block->state == OOMPH_BLOCK_DEFERRED;

    *info = (oomph_block_info_t){
        .device = pool->device->ordinal,
        .addr = block->addr,
        .bytes = block->bytes,
        .requested_bytes = live ? block->use.requested_bytes : 0,
        .state = (oomph_block_state_t)block->state,
        .tier = (oomph_tier_t)block->tier,
        .host_bytes = host_bytes(block),
        .small = pool->small,
        .stream = pool->stream->handle,
        .pool = pool->group != NULL ? pool->group->id : (oomph_pool_id_t){0, 0},
        .segment_addr = block->segment->base,
        .segment_bytes = block->segment->bytes,
        .adopted = block->segment->kind != OOMPH_SEGMENT_VIRTUAL,
        .user = live ? oomph_block_user(block) : NULL,
        .site = live ? block->site : 0,
    };
}

static oomph_segment_t *find_in(const oomph_heap_t *heap, oomph_addr_t addr)
{
    oomph_segment_t *segment = heap->segments;

    while (segment != NULL && addr - segment->base >= segment->bytes)
        segment = segment->next;
    return segment;
}

oomph_segment_t *oomph_device_segment(const oomph_device_t *device, oomph_addr_t addr)
{
    oomph_segment_t *found = NULL;

    for (oomph_pool_t *pool = device->pools; pool != NULL && found == NULL;
         pool = pool->next) {
        found = find_in(&pool->heap, addr);
        if (found == NULL && !pool->small)
            found = find_in(&pool->arena, addr);
    }
    return found;
}

static void each_in(const oomph_heap_t *heap, oomph_each_t each, void *context)
{
    for (const oomph_segment_t *s = heap->segments; s != NULL; s = s->next)
        for (const oomph_block_t *b = s->first; b != NULL; b = b->next)
            each(b, context);
}

void oomph_device_each(const oomph_device_t *device, oomph_each_t each, void *context)
{
    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        each_in(&pool->heap, each, context);
        if (!pool->small)
            each_in(&pool->arena, each, context);
    }
}
