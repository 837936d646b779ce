/* trim.c - giving memory back to the driver, and what is done when a step ends. */
#include "device.h"

#include <stdlib.h>

enum { CALM_STEPS = 4 }; // steps without shortage until frees are no longer stamped

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
        oomph_heap_settle(&pool->heap);
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
        oomph_budget_give(pages->host, segment->bytes);
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
        oomph_lock(device);
    }
    return freed_bytes;
}

// Returns adopted memory that nothing uses any more.
static size_t return_adopted(oomph_device_t *device)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        oomph_heap_settle(&pool->heap);
    size_t freed_bytes = oomph_return_pinned(device, SIZE_MAX);
    return freed_bytes + return_foreign(device);
}

/* ---- Pages */

// Unmaps and releases what has finished, up to `bytes`.
static size_t release_passed(oomph_device_t *device, const oomph_reach_t *reach,
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

oomph_status_t oomph_empty_cache(int ordinal, oomph_pool_id_t id, size_t *freed_bytes)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    size_t freed = 0;

    if (device == NULL) {
        *freed_bytes = 0;
        return OOMPH_OK; // never used: nothing is cached
    }
    oomph_lock(device);
    int64_t start = oomph_now_ns();
    bool all = oomph_same_pool(id, (oomph_pool_id_t){0, 0});
    oomph_reach_t reach = {.group = all ? NULL : oomph_group_find(device, id)};
    bool was_pressed = device->pressed;
    int64_t syncs = device->stats.sync_count;
    oomph_press(device);
    oomph_wait_for(device, NULL); // while a stream captures: only what has passed
    if (oomph_collect(device))
        oomph_wait_for(device, NULL); // these blocks count as freed just now
    if (device->stats.sync_count > syncs)
        device->stats.sync_count = syncs + 1; // PyTorch counts such a call once
    if (all || reach.group != NULL)
        for (int tier = 0; tier < OOMPH_TIERS; tier++) {
            reach.tier = (oomph_tier_t)tier;
            freed += release_passed(device, &reach, SIZE_MAX / 2);
        }
    freed += return_adopted(device);
    oomph_imports_settle(device);
    device->pressed = was_pressed;
    oomph_pools_prune(device);
    device->stats.driver_ns += oomph_now_ns() - start;
    oomph_unlock(device);
    *freed_bytes = freed;
    return OOMPH_OK;
}

// Releases device pages until `bytes` have been, waiting where that helps.
static size_t give_back(oomph_device_t *device, size_t bytes)
{
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    size_t freed = 0;
    oomph_survey_t survey;

    do {
        survey = oomph_steal_survey(device, &reach);
        freed += release_passed(device, &reach, bytes - freed);
    } while (freed < bytes && survey.later > 0 && oomph_wait_for_pages(device));
    return freed;
}

oomph_status_t oomph_give_back(int ordinal, size_t bytes, size_t *freed_bytes)
{
    oomph_device_t *device = oomph_device_peek(ordinal);

    if (device == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
    oomph_lock(device);
    *freed_bytes = give_back(device, bytes);
    oomph_unlock(device);
    return OOMPH_OK;
}

size_t oomph_return_host(oomph_device_t *device, size_t bytes)
{
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST};
    oomph_survey_t pages, pinned;
    size_t freed = 0;

    oomph_ahead_recall(&device->ahead, &device->pages);
    do {
        pages = oomph_steal_survey(device, &reach);
        freed += release_passed(device, &reach, bytes - freed);
        pinned = oomph_pinned_survey(device);
        if (freed < bytes)
            freed += oomph_return_pinned(device, bytes - freed);
    } while (freed < bytes && pages.later + pinned.later > 0 &&
             oomph_wait_for_pages(device));
    return freed;
}

/* ---- The end of a step */

static void plan_next_step(oomph_device_t *device)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        oomph_plan_t *plan = &pool->plan;
        if (pool->small || pool->group != NULL)
            continue;
        // Somebody settled down in the arena: pack again, elsewhere.
        if (plan->places != NULL && pool->conflicts > plan->place_count / 16)
            oomph_plan_drop(plan);
        pool->conflicts = 0;
        oomph_plan_mark(plan);
        if (!device->pressed)
            plan->found_period = 0; // there is room enough without a plan
        if (plan->found_period != 0 ||
            (plan->places == NULL && pool->arena.segments != NULL))
            oomph_pool_replan(pool);
    }
}

// Returns host pages once a step has done without; then stops stamping frees.
static void relax(oomph_device_t *device)
{
    oomph_stats_t *stats = &device->stats;
    oomph_reach_t host = {.tier = OOMPH_TIER_HOST};
    int64_t buffers = device->step_buffers;

    device->step_buffers = 0;
    if (!device->pressed)
        return;
    oomph_streams_catch_up(&device->streams);
    if (stats->step_rescues > 0 || buffers > 0)
        return;
    oomph_ahead_recall(&device->ahead, &device->pages);
    release_passed(device, &host, SIZE_MAX / 2);
    return_adopted(device);
    if (stats->step_count - device->pressed_step >= CALM_STEPS)
        device->pressed = false;
}

// Libraries allocate for themselves: what the reserve lacks is returned to the driver.
static void keep_reserve(oomph_device_t *device)
{
    size_t free_bytes, total_bytes, reserve = device->pages.reserve_bytes;

    if (reserve == 0 || oomph_process.driver->memory_info(device->ordinal, &free_bytes,
                                                          &total_bytes) != OOMPH_OK)
        return;
    device->pages.known_free_bytes = free_bytes;
    device->pages.unchecked_bytes = 0;
    if (free_bytes < reserve)
        give_back(device, reserve - free_bytes);
}

static void end_step(oomph_device_t *device)
{
    oomph_stats_t *stats = &device->stats;
    int64_t remapped = stats->pages_remapped * (int64_t)device->pages.page_bytes;

    stats->step_remapped_bytes = remapped - device->step_start_remapped;
    stats->step_rescues = stats->rescues - device->step_start_rescues;
    oomph_foresight_turn(&device->foresight);
    stats->rescues_of[stats->step_count++ % OOMPH_STEPS_KEPT] = stats->step_rescues;
    device->step_start_remapped = remapped;
    device->step_start_rescues = stats->rescues;
    if (oomph_process.config.plan)
        plan_next_step(device);
    oomph_split_t turned =
        oomph_split_turn(&device->split, &device->tallies.active_bytes);
    oomph_room_end_step(device, turned.high);
    oomph_promote_survivors(device, turned.device_high);
    relax(device);
    keep_reserve(device);
    device->streams.turn++;
    oomph_pools_prune(device);
}

uint64_t oomph_step(void)
{
    uint64_t rescued = 0;

    for (int i = 0; i < OOMPH_DEVICE_MAX; i++) {
        oomph_device_t *device = oomph_device_peek(i);
        if (device == NULL)
            continue;
        oomph_lock(device);
        end_step(device);
        rescued |= (uint64_t)(device->stats.step_rescues > 0) << i;
        oomph_unlock(device);
    }
    return rescued;
}
