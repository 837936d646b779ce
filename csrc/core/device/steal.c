/* steal.c - free pages on their way from one hole to another.
 *
 * A free page may move once all work has finished that the device was given before it
 * was freed, on whatever stream (stream.h). Pages of pools that a graph holds never
 * move, but for host pages that no capture has used (capture.c); nor does memory that
 * was adopted rather than mapped.
 *
 * Of those that may move, the first to go are the ones that no layout has a use for,
 * beside a layout that is in force; then those that the layouts of other streams
 * need last, if that is a period away; then those of pools without a layout; then those
 * that the layouts of other streams need sooner, the last needed first; those of the
 * layout of the thief's own stream come at the end, since it will soon want them back.
 *
 * What the thief's own stream freed need not have finished: in the order of the stream
 * it may be used again at once, at another address (alias.h). That goes only between
 * default pools, outside of layouts, while nobody wants to hear of what is unmapped,
 * and without `guard`.
 *
 * They go in runs, each with one call to unmap it. To pick a run is a walk over the
 * free blocks of the pools that come into question, and over the places of the layouts
 * where it comes to those. It waits for nothing.
 */
#include "core/device/steal.h"
#include "core/device/sync.h"

#include <stdlib.h>

void oomph_note_pressure(oomph_device_t *device)
{
    device->pressure_step = device->stats.step_count;
    if (device->under_pressure)
        return;
    device->under_pressure = true;
    device->streams.floor = oomph_streams_stamp(&device->streams, 0);
}

void oomph_stamp(const oomph_block_t *block)
{
    oomph_segment_t *segment = block->segment;
    uint64_t epoch =
        oomph_streams_stamp(&oomph_block_pool(block)->device->streams, block->bytes);

    if (segment->entries == NULL) {
        segment->epoch = epoch;
        return;
    }
    size_t last = oomph_block_last_page(block);
    for (size_t i = oomph_segment_page(segment, block->addr); i <= last; i++)
        segment->entries[i].epoch = epoch;
}

/* ---- Counting */

typedef struct count {
    oomph_survey_t survey;
    uint64_t newest; // epoch that can be waited for
    const oomph_pool_t *thief;
} count_t;

static bool count_run(const oomph_free_run_t *run, oomph_pool_t *pool, void *context)
{
    count_t *count = context;
    const oomph_page_entry_t *entries = run->pages.segment->entries + run->pages.first;

    if (run->passed)
        count->survey.now += run->pages.count;
    bool own = oomph_is_own(run, pool, count->thief);
    for (size_t i = 0; i < run->pages.count && !run->passed; i++) {
        bool later = oomph_epoch_of(pool, entries[i].epoch) <= count->newest;
        count->survey.later += later;
        count->survey.own += later && own;
    }
    return true;
}

uint64_t oomph_newest_epoch(oomph_device_t *device)
{
    oomph_streams_t *streams = &device->streams;

    oomph_note_pressure(device);
    oomph_streams_catch_up(streams);
    if (streams->stamped && oomph_streams_capture(streams))
        return streams->clock.open - 1; // none is closed meanwhile
    return UINT64_MAX;
}

oomph_survey_t oomph_steal_survey(oomph_device_t *device, const oomph_reach_t *reach)
{
    count_t count = {.newest = oomph_newest_epoch(device), .thief = reach->thief};

    if (reach->until != 0)
        count.newest = oomph_min(count.newest, reach->until);

    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        if (!oomph_in_reach(pool, reach))
            continue;
        oomph_heap_consolidate(&pool->heap);
        oomph_reach_visit(&pool->heap, pool, reach, count_run, &count);
        oomph_reach_visit(&pool->arena, pool, reach, count_run, &count);
    }
    return count.survey;
}

/* ---- Stealing */

typedef struct victim {
    oomph_free_run_t run;
    const oomph_pool_t *pool; // NULL: none yet
    size_t want;
    const uint32_t *uses; // when the layout needs each page of its arena
    uint32_t use;         // of the run
} victim_t;

static bool pick_first(const oomph_free_run_t *run, oomph_pool_t *pool, void *context)
{
    victim_t *victim = context;

    if (!run->passed)
        return true;
    victim->run = *run;
    victim->run.pages.count = oomph_min(run->pages.count, victim->want);
    victim->pool = pool;
    return false;
}

static bool pick_last_needed(const oomph_free_run_t *run, oomph_pool_t *pool,
                             void *context)
{
    victim_t *victim = context;
    const uint32_t *uses = victim->uses;

    for (size_t first = run->pages.first, end = run->pages.first + run->pages.count,
                next;
         run->passed && first < end; first = next) {
        next = first + 1;
        while (next < end && uses[next] == uses[first])
            next++;
        if (victim->pool != NULL && uses[first] <= victim->use)
            continue;
        size_t count = oomph_min(next - first, victim->want);
        victim->run = (oomph_free_run_t){{run->pages.segment, first, count}, true};
        victim->pool = pool;
        victim->use = uses[first];
    }
    return true;
}

static void pick_in_arena(oomph_pool_t *pool, const oomph_reach_t *reach,
                          victim_t *victim)
{
    const oomph_segment_t *arena = pool->arena.segments;
    if (arena == NULL || !oomph_in_reach(pool, reach))
        return;

    size_t count = arena->bytes >> arena->page_shift;
    uint32_t *uses = malloc(count * sizeof *uses);
    if (uses == NULL) {
        oomph_reach_visit(&pool->arena, pool, reach, pick_first, victim);
        return;
    }
    oomph_layout_uses(&pool->layout, arena->page_shift, uses, count);
    victim->uses = uses;
    oomph_reach_visit(&pool->arena, pool, reach, pick_last_needed, victim);
    free(uses);
}

static void pick_in_heaps(oomph_device_t *device, const oomph_reach_t *reach,
                          bool planned, victim_t *victim)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL && victim->pool == NULL;
         pool = pool->next) {
        if ((pool->layout.places != NULL) != planned || !oomph_in_reach(pool, reach))
            continue;
        oomph_heap_consolidate(&pool->heap);
        oomph_reach_visit(&pool->heap, pool, reach, pick_first, victim);
    }
}

// The order is explained at the top.
static victim_t pick(oomph_device_t *device, const oomph_reach_t *reach, size_t want,
                     const oomph_stream_state_t *thief)
{
    oomph_pool_t *own = thief != NULL ? thief->pools[false] : NULL;
    victim_t victim = {.want = want}, unplanned = {.want = want};

    pick_in_heaps(device, reach, true, &victim);
    if (victim.pool != NULL)
        return victim;
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        if (pool != own)
            pick_in_arena(pool, reach, &victim);
    if (victim.pool != NULL && victim.use >= OOMPH_LAYOUT_PERIOD)
        return victim;
    pick_in_heaps(device, reach, false, &unplanned);
    if (unplanned.pool != NULL)
        return unplanned;
    if (victim.pool == NULL && own != NULL)
        pick_in_arena(own, reach, &victim);
    return victim;
}

// Tells the embedder what is about to be unmapped, without the lock. Meanwhile the
// pages are in use, so that nobody else takes them.
static void announce(oomph_device_t *device, const victim_t *victim)
{
    const oomph_free_run_t *run = &victim->run;
    const oomph_hooks_t *hooks = &oomph_process.hooks;
    oomph_addr_t addr = oomph_segment_addr(run->pages.segment, run->pages.first);
    size_t bytes = run->pages.count * device->pages.page_bytes;

    if (hooks->unmapping == NULL || !atomic_load(&oomph_process.watched) ||
        oomph_slab_reserve(&device->slab, 4) != OOMPH_OK)
        return;
    oomph_block_t *block = oomph_heap_take(
        oomph_page_block(run->pages.segment, run->pages.first), addr, bytes);
    oomph_unlock(device);
    hooks->unmapping(device->ordinal, addr, bytes, victim->pool->stream->handle);
    oomph_lock(device);
    oomph_heap_give(block);
}

size_t oomph_steal(oomph_device_t *device, const oomph_reach_t *reach, size_t want,
                   const oomph_stream_state_t *thief)
{
    size_t got = 0;

    oomph_end_aliases(device);
    while (got < want) {
        victim_t victim = pick(device, reach, want - got, thief);
        if (victim.pool == NULL)
            break;
        announce(device, &victim);
        if (oomph_segment_unmap(victim.run.pages.segment, &device->pages,
                                victim.run.pages.first,
                                victim.run.pages.count) != OOMPH_OK)
            break;
        got += victim.run.pages.count;
        if (thief != NULL && reach->tier == OOMPH_TIER_DEVICE) {
            device->stats.pages_remapped += (int64_t)victim.run.pages.count;
            if (victim.pool->stream != thief)
                device->stats.pages_stolen += (int64_t)victim.run.pages.count;
        }
    }
    return got;
}

/* ---- What the stream itself has freed */

static bool pick_own(const oomph_free_run_t *run, oomph_pool_t *pool, void *context)
{
    victim_t *victim = context;

    if (!oomph_is_own(run, pool, pool))
        return true;
    victim->run = *run;
    victim->run.pages.count = oomph_min(run->pages.count, victim->want);
    victim->pool = pool;
    return false;
}

static uint64_t last_epoch_of(const oomph_free_run_t *run, const oomph_pool_t *pool)
{
    const oomph_page_entry_t *entries = run->pages.segment->entries + run->pages.first;
    uint64_t last = 0;

    for (size_t i = 0; i < run->pages.count; i++)
        last = oomph_max(last, oomph_epoch_of(pool, entries[i].epoch));
    return last;
}

size_t oomph_steal_own(oomph_device_t *device, const oomph_reach_t *reach, size_t want)
{
    oomph_pool_t *const *pools = (oomph_pool_t **)reach->thief->stream->pools;
    size_t got = 0;

    oomph_end_aliases(device);
    while (got < want) {
        oomph_page_run_t to = oomph_span_lacks(&reach->keep);
        victim_t victim = {.want = oomph_min(to.count, want - got)};
        for (int small = 0; small < 2 && victim.pool == NULL && victim.want > 0;
             small++)
            if (pools[small] != NULL)
                oomph_reach_visit(&pools[small]->heap, pools[small], reach, pick_own,
                                  &victim);
        if (victim.pool == NULL)
            break;
        oomph_page_run_t from = victim.run.pages;
        to.count = from.count;
        if (oomph_alias(&device->aliases, &device->pages, to, from,
                        last_epoch_of(&victim.run, victim.pool)) != OOMPH_OK)
            break;
        got += from.count;
        device->stats.pages_remapped += (int64_t)from.count;
    }
    return got;
}
