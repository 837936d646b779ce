/* span.c - where a block goes for which no free block is large enough.
 *
 * Free blocks and the holes beside them make gaps. In each gap the places flush with an
 * end of a free block are tried, and the gap's own start: the place that lacks the
 * fewest pages is one of them, since moving a span towards a free block lacks fewer
 * with every page until the block's end is met. It costs a walk over all gaps, which
 * is little beside the driver calls that follow.
 */
#include "core/heap/span.h"

static bool is_room(const oomph_block_t *block)
{
    return (block->state == OOMPH_BLOCK_HOLE && !block->quarantined) ||
           (block->state == OOMPH_BLOCK_FREE && block->tier == OOMPH_TIER_DEVICE);
}

// The span [addr, addr + bytes), of which `block` contains the first byte.
static bool span_from(oomph_block_t *block, oomph_addr_t addr, size_t bytes,
                      oomph_span_t *span)
{
    oomph_segment_t *segment = block->segment;
    oomph_block_t *first = block;
    oomph_addr_t end = addr + bytes;
    uint64_t page_bytes = 1ull << segment->page_shift;
    size_t missing_count = 0;

    for (; block != NULL && block->addr < end; block = block->next) {
        if (!is_room(block))
            return false;
        if (block->state != OOMPH_BLOCK_HOLE)
            continue;
        uint64_t from = block->addr > addr ? block->addr : addr;
        uint64_t to = oomph_block_end(block) < end ? oomph_block_end(block) : end;
        missing_count +=
            (size_t)((oomph_round_up(to - segment->base, page_bytes) -
                      oomph_round_down(from - segment->base, page_bytes)) >>
                     segment->page_shift);
    }
    *span = (oomph_span_t){segment, first, addr, bytes, missing_count};
    return true;
}

bool oomph_heap_span_at(oomph_segment_t *segment, oomph_addr_t addr, size_t bytes,
                        oomph_span_t *span)
{
    if (addr < segment->base || bytes > segment->bytes ||
        addr - segment->base > segment->bytes - bytes)
        return false;
    return span_from(oomph_segment_block(segment, addr), addr, bytes, span);
}

static void keep_better(const oomph_span_t *span, oomph_span_t *best)
{
    if (best->segment == NULL || span->missing_count < best->missing_count ||
        (span->missing_count == best->missing_count && span->addr < best->addr))
        *best = *span;
}

// Tries the places in the gap (FREE and HOLE neighbours) that begins with `first`: at
// its start, and flush with either end of each of its FREE blocks.
static void choose_in_gap(oomph_block_t *first, size_t bytes, oomph_span_t *best)
{
    oomph_span_t span;
    oomph_addr_t end = first->addr;

    for (oomph_block_t *b = first; b != NULL && is_room(b); b = b->next)
        end = oomph_block_end(b);
    if (end - first->addr < bytes)
        return;
    if (span_from(first, first->addr, bytes, &span))
        keep_better(&span, best);
    for (oomph_block_t *b = first; b != NULL && is_room(b); b = b->next) {
        if (b->state == OOMPH_BLOCK_HOLE)
            continue;
        if (b->addr + bytes <= end && span_from(b, b->addr, bytes, &span))
            keep_better(&span, best);
        oomph_addr_t block_end = oomph_block_end(b);
        if (block_end - first->addr < bytes)
            continue;
        oomph_block_t *start = b;
        while (start->addr > block_end - bytes) {
            start = start->prev;
            oomph_assert(start != NULL); // the gap is long enough
        }
        if (span_from(start, block_end - bytes, bytes, &span))
            keep_better(&span, best);
    }
}

bool oomph_heap_best_span(const oomph_heap_t *heap, size_t bytes, oomph_span_t *span)
{
    oomph_span_t best = {0};

    for (oomph_block_t *hole = heap->holes; hole != NULL; hole = hole->links.after) {
        oomph_block_t *first = hole;
        bool seen = false; // the gap has a HOLE further left, which looks at it
        while (first->prev != NULL && is_room(first->prev) && !seen) {
            first = first->prev;
            seen = first->state == OOMPH_BLOCK_HOLE;
        }
        if (!seen)
            choose_in_gap(first, bytes, &best);
    }
    if (best.segment == NULL)
        return false;
    *span = best;
    return true;
}

oomph_block_t *oomph_heap_hole(const oomph_heap_t *heap, size_t count)
{
    oomph_block_t *lowest = NULL;

    for (oomph_block_t *hole = heap->holes; hole != NULL; hole = hole->links.after)
        if (hole->bytes >> hole->segment->page_shift >= count &&
            (lowest == NULL || hole->addr < lowest->addr))
            lowest = hole;
    return lowest;
}

oomph_page_run_t oomph_span_lacks(const oomph_span_t *span)
{
    oomph_segment_t *segment = span->segment;
    size_t first = oomph_segment_page(segment, span->addr);
    size_t end = oomph_segment_page(segment, span->addr + span->bytes - 1) + 1;

    while (first < end && segment->entries[first].handle != 0)
        first++;
    size_t next = first;
    while (next < end && segment->entries[next].handle == 0)
        next++;
    return (oomph_page_run_t){segment, first, next - first};
}
