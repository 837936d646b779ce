/* trim.c - what is idle, on its way back to the driver.
 *
 * Pages are taken from wherever they are free (steal.c), and released until there are
 * enough; as long as more are to come, the oldest epoch is waited for, and all is tried
 * again: so nothing is waited for that is not needed. Adopted memory goes back whole:
 * the smallest that is enough, else the largest, so that few pieces go. Finding one is
 * a walk over all segments, which is little beside the driver call that follows.
 */
#include "core/alloc/trim.h"
#include "core/alloc/free.h"

#include <stdlib.h>

/* ---- Adopted memory */

// Whether it is adopted memory in which nothing is in use.
static bool is_free(const oomph_segment_t *segment, const oomph_pool_t *pool)
{
    return segment->kind != OOMPH_SEGMENT_VIRTUAL &&
           segment->first->state == OOMPH_BLOCK_FREE &&
           segment->first->bytes == segment->bytes &&
           (pool->group == NULL || pool->group->use_count == 0 ||
            (segment->kind == OOMPH_SEGMENT_PINNED && !segment->captured));
}

static bool has_passed(const oomph_segment_t *segment, const oomph_pool_t *pool)
{
    return oomph_has_passed(pool, segment->epoch);
}

// Whether the first is the one to return for `bytes`: the smallest that has them, or
// else the largest.
static bool suits_better(const oomph_segment_t *a, const oomph_segment_t *b,
                         size_t bytes)
{
    if (b == NULL)
        return true;
    return a->bytes >= bytes ? b->bytes < bytes || a->bytes < b->bytes
                             : a->bytes > b->bytes;
}

static oomph_segment_t *find_idle(const oomph_device_t *device,
                                  oomph_segment_kind_t kind, size_t bytes)
{
    oomph_segment_t *best = NULL;

    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        for (oomph_segment_t *s = pool->heap.segments; s != NULL; s = s->next)
            if (s->kind == kind && is_free(s, pool) && has_passed(s, pool) &&
                suits_better(s, best, bytes))
                best = s;
    return best;
}

oomph_survey_t oomph_pinned_survey(oomph_device_t *device)
{
    uint64_t newest = oomph_newest_epoch(device);
    oomph_survey_t survey = {0};

    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        oomph_heap_consolidate(&pool->heap);
        for (oomph_segment_t *s = pool->heap.segments; s != NULL; s = s->next) {
            size_t count = s->bytes / device->pages.page_bytes;
            if (s->kind != OOMPH_SEGMENT_PINNED || !is_free(s, pool))
                continue;
            if (has_passed(s, pool))
                survey.now += count;
            else if (oomph_epoch_of(pool, s->epoch) <= newest)
                survey.later += count;
        }
    }
    return survey;
}

size_t oomph_return_pinned(oomph_device_t *device, size_t bytes)
{
    oomph_pages_t *pages = &device->pages;
    oomph_segment_t *segment;
    size_t freed_bytes = 0;

    while (freed_bytes < bytes &&
           (segment = find_idle(device, OOMPH_SEGMENT_PINNED, bytes - freed_bytes)) !=
               NULL &&
           pages->driver->pinned_free(pages->device, segment->base) == OOMPH_OK) {
        freed_bytes += segment->bytes;
        oomph_host_limit_give(pages->host, segment->bytes);
        oomph_segment_drop(segment, pages);
    }
    return freed_bytes;
}

// Returns memory of sources, which are called without the lock.
static size_t return_foreign(oomph_device_t *device)
{
    oomph_segment_t *segment;
    size_t freed_bytes = 0;

    while ((segment = find_idle(device, OOMPH_SEGMENT_FOREIGN, SIZE_MAX)) != NULL) {
        const oomph_pool_t *pool = segment->heap->owner;
        oomph_source_t source = pool->group->source;
        oomph_addr_t addr = segment->base;
        freed_bytes += segment->bytes;
        oomph_segment_drop(segment, &device->pages);
        oomph_unlock(device);
        source.give(source.context, addr);
        oomph_enter(device);
    }
    return freed_bytes;
}

size_t oomph_return_adopted(oomph_device_t *device)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        oomph_heap_consolidate(&pool->heap);
    size_t freed_bytes = oomph_return_pinned(device, SIZE_MAX);
    return freed_bytes + return_foreign(device);
}

/* ---- Pages */

size_t oomph_release_passed(oomph_device_t *device, const oomph_reach_t *reach,
                            size_t bytes)
{
    size_t page_bytes = device->pages.page_bytes;
    size_t spare = device->pages.tiers[reach->tier].spare_count;
    size_t retired_bytes = device->pages.retired_bytes;
    size_t want =
        oomph_min(oomph_round_up(bytes, page_bytes) / page_bytes, SIZE_MAX / 2);

    if (spare < want)
        oomph_steal(device, reach, want - spare, NULL);
    spare = device->pages.tiers[reach->tier].spare_count;
    size_t freed =
        oomph_pages_trim(&device->pages, reach->tier, spare - oomph_min(spare, want));
    return freed + device->pages.retired_bytes - retired_bytes;
}

size_t oomph_return_device(oomph_device_t *device, size_t bytes)
{
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    size_t freed = 0;
    oomph_survey_t survey;

    do {
        survey = oomph_steal_survey(device, &reach);
        freed += oomph_release_passed(device, &reach, bytes - freed);
    } while (freed < bytes && survey.later > 0 && oomph_wait_for_pages(device));
    return freed;
}

size_t oomph_return_host(oomph_device_t *device, size_t bytes)
{
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST};
    oomph_survey_t pages, pinned;
    size_t freed = 0;

    oomph_ahead_recall(&device->ahead, &device->pages);
    do {
        pages = oomph_steal_survey(device, &reach);
        freed += oomph_release_passed(device, &reach, bytes - freed);
        pinned = oomph_pinned_survey(device);
        if (freed < bytes)
            freed += oomph_return_pinned(device, bytes - freed);
    } while (freed < bytes && pages.later + pinned.later > 0 &&
             oomph_wait_for_pages(device));
    return freed;
}

/* ---- What steps do without */

enum {
    OOMPH_HOST_STEPS_MIN = 1, // that are looked at, until that was too few
    SPARE_DIVISOR = 16,       // part of what they need that is kept beside
};

static size_t most_of(const oomph_host_need_t *need, int64_t step)
{
    int64_t most = 0;

    for (int64_t i = 0; i < need->steps && i <= step; i++) {
        int64_t bytes = need->most_of[(step - i) % OOMPH_HOST_STEPS];
        most = bytes > most ? bytes : most;
    }
    return (size_t)(most + most / SPARE_DIVISOR);
}

void oomph_return_idle_host(oomph_device_t *device)
{
    oomph_host_need_t *need = &device->host_need;
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST};
    size_t held = oomph_pages_bytes(&device->pages, OOMPH_TIER_HOST);
    int64_t step = device->stats.step_count;
    bool grew = held > need->held_bytes;

    if (need->steps == 0)
        need->steps = OOMPH_HOST_STEPS_MIN;
    else if (grew && need->returned_step > 0 &&
             step - need->returned_step <= OOMPH_HOST_STEPS &&
             need->steps < OOMPH_HOST_STEPS)
        need->steps *= 2; // what went back was needed again
    need->most_of[step % OOMPH_HOST_STEPS] = need->live.peak;
    need->live = (oomph_level_t){.peak = oomph_level_now(&need->live)};
    size_t most = most_of(need, step);
    if (!grew && step >= need->steps && held > most) {
        oomph_ahead_drop(&device->ahead);
        size_t freed = oomph_release_passed(device, &reach, held - most);
        if (freed < held - most)
            oomph_return_pinned(device, held - most - freed);
        need->returned_step = step;
    }
    need->held_bytes = oomph_pages_bytes(&device->pages, OOMPH_TIER_HOST);
}
