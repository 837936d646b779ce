/* reach.h - the free pages that may move, and when. The caller holds the device lock.
 */
#pragma once
#include "core/device/device.h"

// Which free pages are meant.
typedef struct oomph_reach {
    oomph_tier_t tier;
    const oomph_group_t *group; // only of this group; NULL: of all that may move
    const oomph_heap_t *heap;   // only of this heap; NULL: of all
    oomph_span_t keep;          // not of this span, if it has bytes
    const oomph_pool_t *thief;  // that may have pages at once; NULL: there is none
    uint64_t until;             // none is waited for that was freed later; 0: all are
} oomph_reach_t;

// The epoch in which pages with this stamp count as freed.
static inline uint64_t oomph_epoch_of(const oomph_pool_t *pool, uint64_t stamp)
{
    return oomph_max(stamp, oomph_max(pool->floor, pool->device->streams.floor));
}

// Whether all work has finished that was queued before they were freed.
static inline bool oomph_has_passed(const oomph_pool_t *pool, uint64_t stamp)
{
    return oomph_epoch_of(pool, stamp) <= pool->device->streams.clock.passed;
}

// Free pages that may ever move.
typedef struct oomph_free_run {
    oomph_page_run_t pages;
    bool passed; // the work that used them has finished
} oomph_free_run_t;

// Gives false to end the walk.
typedef bool (*oomph_visit_run_t)(const oomph_free_run_t *run, oomph_pool_t *pool,
                                  void *context);

// Visits what is within reach of one of a pool's heaps; gives false where the walk was
// ended.
bool oomph_reach_visit(const oomph_heap_t *heap, oomph_pool_t *pool,
                       const oomph_reach_t *reach, oomph_visit_run_t visit,
                       void *context);
// Whether the pages of a pool may be within reach.
bool oomph_in_reach(const oomph_pool_t *pool, const oomph_reach_t *reach);
// Unmaps the old addresses whose work has finished.
static inline void oomph_end_aliases(oomph_device_t *device)
{
    oomph_aliases_end(&device->aliases, &device->pages, device->streams.clock.passed);
}
// Whether a pool may have what its stream freed before that has finished, at another
// address (alias.h): default pools only, while nobody wants to hear of what is
// unmapped, and without `guard`.
bool oomph_may_alias(const oomph_pool_t *pool);
// Whether these are such pages for a thief: of its stream, outside of layouts.
bool oomph_is_own(const oomph_free_run_t *run, const oomph_pool_t *pool,
                  const oomph_pool_t *thief);
