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
 * They go in runs, each with one call to unmap it. To pick a run is a walk over the
 * free blocks of the pools that come into question, and over the places of the layouts
 * where it comes to those. It waits for nothing.
 */
#include "core/device/steal.h"
#include "core/device/sync.h"
#include "core/heap/index.h"

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

/* ---- Runs of pages that may move */

typedef struct run {
    oomph_segment_t *segment;
    size_t first, count;
    bool passed; // the work that used them has finished
} run_t;

// Gives false to end the walk.
typedef bool (*visit_run_t)(const run_t *run, oomph_pool_t *pool, void *context);

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
                        oomph_pool_t *pool, visit_run_t visit, void *context)
{
    const oomph_page_entry_t *entries = segment->entries;

    while (first < end) {
        fate_t fate = fate_of(&entries[first], pool);
        size_t next = first + 1;
        while (next < end && fate == fate_of(&entries[next], pool))
            next++;
        run_t run = {segment, first, next - first, fate == MAY_GO};
        if (fate != STAYS && !visit(&run, pool, context))
            return false;
        first = next;
    }
    return true;
}

// The same for the whole pages of a block, but for those of a span that is kept.
static bool visit_block(const oomph_block_t *block, const oomph_span_t *keep,
                        oomph_pool_t *pool, visit_run_t visit, void *context)
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

static bool visit_heap(const oomph_heap_t *heap, oomph_pool_t *pool,
                       const oomph_reach_t *reach, visit_run_t visit, void *context)
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

static bool in_reach(const oomph_pool_t *pool, const oomph_reach_t *reach)
{
    // Of pools of graphs only what was made ready on the host, and not used.
    return (oomph_pool_floats(pool) || reach->tier == OOMPH_TIER_HOST) &&
           (reach->group == NULL || reach->group == pool->group);
}

/* ---- Counting */

typedef struct count {
    oomph_survey_t survey;
    uint64_t newest; // epoch that can be waited for
} count_t;

static bool count_run(const run_t *run, oomph_pool_t *pool, void *context)
{
    count_t *count = context;
    const oomph_page_entry_t *entries = run->segment->entries + run->first;

    if (run->passed)
        count->survey.now += run->count;
    for (size_t i = 0; i < run->count && !run->passed; i++)
        count->survey.later += oomph_epoch_of(pool, entries[i].epoch) <= count->newest;
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
    count_t count = {.newest = oomph_newest_epoch(device)};

    if (reach->until != 0)
        count.newest = oomph_min(count.newest, reach->until);

    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        if (!in_reach(pool, reach))
            continue;
        oomph_heap_consolidate(&pool->heap);
        visit_heap(&pool->heap, pool, reach, count_run, &count);
        visit_heap(&pool->arena, pool, reach, count_run, &count);
    }
    return count.survey;
}

/* ---- Stealing */

typedef struct victim {
    run_t run;
    const oomph_pool_t *pool; // NULL: none yet
    size_t want;
    const uint32_t *uses; // when the layout needs each page of its arena
    uint32_t use;         // of the run
} victim_t;

static bool pick_first(const run_t *run, oomph_pool_t *pool, void *context)
{
    victim_t *victim = context;

    if (!run->passed)
        return true;
    victim->run = *run;
    victim->run.count = oomph_min(run->count, victim->want);
    victim->pool = pool;
    return false;
}

static bool pick_last_needed(const run_t *run, oomph_pool_t *pool, void *context)
{
    victim_t *victim = context;
    const uint32_t *uses = victim->uses;

    for (size_t first = run->first, end = run->first + run->count, next;
         run->passed && first < end; first = next) {
        next = first + 1;
        while (next < end && uses[next] == uses[first])
            next++;
        if (victim->pool != NULL && uses[first] <= victim->use)
            continue;
        size_t count = oomph_min(next - first, victim->want);
        victim->run = (run_t){run->segment, first, count, true};
        victim->pool = pool;
        victim->use = uses[first];
    }
    return true;
}

static void pick_in_arena(oomph_pool_t *pool, const oomph_reach_t *reach,
                          victim_t *victim)
{
    const oomph_segment_t *arena = pool->arena.segments;
    if (arena == NULL || !in_reach(pool, reach))
        return;

    size_t count = arena->bytes >> arena->page_shift;
    uint32_t *uses = malloc(count * sizeof *uses);
    if (uses == NULL) {
        visit_heap(&pool->arena, pool, reach, pick_first, victim);
        return;
    }
    oomph_layout_uses(&pool->layout, arena->page_shift, uses, count);
    victim->uses = uses;
    visit_heap(&pool->arena, pool, reach, pick_last_needed, victim);
    free(uses);
}

static void pick_in_heaps(oomph_device_t *device, const oomph_reach_t *reach,
                          bool planned, victim_t *victim)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL && victim->pool == NULL;
         pool = pool->next) {
        if ((pool->layout.places != NULL) != planned || !in_reach(pool, reach))
            continue;
        oomph_heap_consolidate(&pool->heap);
        visit_heap(&pool->heap, pool, reach, pick_first, victim);
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
    const run_t *run = &victim->run;
    const oomph_hooks_t *hooks = &oomph_process.hooks;
    oomph_addr_t addr = oomph_segment_addr(run->segment, run->first);
    size_t bytes = run->count * device->pages.page_bytes;

    if (hooks->unmapping == NULL || !atomic_load(&oomph_process.watched) ||
        oomph_slab_reserve(&device->slab, 4) != OOMPH_OK)
        return;
    oomph_block_t *block =
        oomph_heap_take(oomph_page_block(run->segment, run->first), addr, bytes);
    oomph_unlock(device);
    hooks->unmapping(device->ordinal, addr, bytes, victim->pool->stream->handle);
    oomph_lock(device);
    oomph_heap_give(block);
}

size_t oomph_steal(oomph_device_t *device, const oomph_reach_t *reach, size_t want,
                   const oomph_stream_state_t *thief)
{
    size_t got = 0;

    while (got < want) {
        victim_t victim = pick(device, reach, want - got, thief);
        if (victim.pool == NULL)
            break;
        announce(device, &victim);
        if (oomph_segment_unmap(victim.run.segment, &device->pages, victim.run.first,
                                victim.run.count) != OOMPH_OK)
            break;
        got += victim.run.count;
        if (thief != NULL && reach->tier == OOMPH_TIER_DEVICE) {
            device->stats.pages_remapped += (int64_t)victim.run.count;
            if (victim.pool->stream != thief)
                device->stats.pages_stolen += (int64_t)victim.run.count;
        }
    }
    return got;
}
