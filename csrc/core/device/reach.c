/* reach.c - a walk over free blocks, which gives their whole pages in runs that have
 * passed or have not. It costs a look at each page.
 */
#include "core/device/reach.h"
#include "core/heap/index.h"

typedef enum fate {
    STAYS, // a graph may use it whenever it runs
    WAITS, // until the work has finished that used it
    MAY_GO,
} fate_t;

static fate_t fate_of(const oomph_page_entry_t *entry, const oomph_pool_t *pool)
{
    if (entry->captured && !oomph_pool_floats(pool))
        return STAYS;
    return oomph_has_passed(pool, entry->epoch) ? MAY_GO : WAITS;
}

// Visits the pages [first, end) of a FREE block that may ever move, in runs that have
// passed or have not.
static bool visit_pages(oomph_segment_t *segment, size_t first, size_t end,
                        oomph_pool_t *pool, oomph_visit_run_t visit, void *context)
{
    const oomph_page_entry_t *entries = segment->entries;

    while (first < end) {
        fate_t fate = fate_of(&entries[first], pool);
        size_t next = first + 1;
        while (next < end && fate == fate_of(&entries[next], pool))
            next++;
        oomph_free_run_t run = {{segment, first, next - first}, fate == MAY_GO};
        if (fate != STAYS && !visit(&run, pool, context))
            return false;
        first = next;
    }
    return true;
}

// The same for the whole pages of a block, but for those of a span that is kept.
static bool visit_block(const oomph_block_t *block, const oomph_span_t *keep,
                        oomph_pool_t *pool, oomph_visit_run_t visit, void *context)
{
    oomph_segment_t *segment = block->segment;
    size_t first;
    size_t end = oomph_block_whole_pages(block, &first) + first;

    if (keep->segment != segment || keep->bytes == 0)
        return visit_pages(segment, first, end, pool, visit, context);
    size_t from = oomph_segment_page(segment, keep->addr);
    size_t to = oomph_segment_page(segment, keep->addr + keep->bytes - 1) + 1;
    return visit_pages(segment, first, oomph_min(end, from), pool, visit, context) &&
           visit_pages(segment, oomph_max(first, to), end, pool, visit, context);
}

bool oomph_reach_visit(const oomph_heap_t *heap, oomph_pool_t *pool,
                       const oomph_reach_t *reach, oomph_visit_run_t visit,
                       void *context)
{
    size_t page_bytes = pool->device->pages.page_bytes;
    unsigned bin = 0;
    bool host = reach->tier == OOMPH_TIER_HOST;
    if (heap->segments == NULL || (reach->heap != NULL && reach->heap != heap))
        return true;

    const oomph_block_t *block =
        host ? heap->host : oomph_index_walk(heap, page_bytes, &bin, NULL);

    while (block != NULL) {
        if (block->segment->kind == OOMPH_SEGMENT_VIRTUAL &&
            !visit_block(block, &reach->keep, pool, visit, context))
            return false;
        block =
            host ? block->links.after : oomph_index_walk(heap, page_bytes, &bin, block);
    }
    return true;
}

bool oomph_in_reach(const oomph_pool_t *pool, const oomph_reach_t *reach)
{
    // Of pools of graphs only what was made ready on the host, and not used.
    return (oomph_pool_floats(pool) || reach->tier == OOMPH_TIER_HOST) &&
           (reach->group == NULL || reach->group == pool->group);
}

bool oomph_may_alias(const oomph_pool_t *pool)
{
    return pool->group == NULL && oomph_process.config.guard == OOMPH_GUARD_OFF &&
           !atomic_load(&oomph_process.watched);
}

bool oomph_is_own(const oomph_free_run_t *run, const oomph_pool_t *pool,
                  const oomph_pool_t *thief)
{
    return thief != NULL && !run->passed && pool->stream == thief->stream &&
           pool->group == NULL && run->pages.segment->heap == &pool->heap &&
           run->pages.segment->exported == NULL;
}
