/* ladder.c - where a block comes from when no quick list has one: a hit, or the only
 * ladder.
 *
 * - A large block that comes as the plan foresees takes its planned place. Any other
 *   takes the free block that fits best. Both are hits: no driver call.
 * - On a miss the block is placed where the fewest pages are missing, and the ladder is
 *   climbed for these: spare and new pages, up to the limit; free pages of other holes
 *   and streams, at once if their work has finished, else after waiting for it; what
 *   PyTorch and the driver cache themselves; host pages; the error.
 * - Before a block is born on host, and before the error, what the program can no
 *   longer reach is freed: the collector is asked.
 * - Each rung is climbed again only if something was gained. Waiting happens without
 *   the lock; another thread that would have to wait takes the first one's result.
 */
#include "core/alloc/ladder.h"
#include "core/alloc/free.h"
#include "core/alloc/garbage.h"
#include "core/alloc/host.h"
#include "core/alloc/trim.h"
#include "core/device/steal.h"

enum { ASK_EVERY = 256 }; // allocations before callbacks that gave nothing are asked

/* ---- Hits */

static oomph_block_t *take_fit(oomph_heap_t *heap, size_t bytes)
{
    oomph_block_t *block = oomph_heap_fit(heap, bytes);

    if (block == NULL || oomph_slab_reserve(heap->slab, 2) != OOMPH_OK)
        return NULL;
    return oomph_heap_take(block, block->addr, heap->whole ? block->bytes : bytes);
}

// The block at the planned place. Where pages are missing there, the span says so; if
// the place is taken, the plan is not followed this time.
static oomph_block_t *take_planned(oomph_claim_t *claim)
{
    oomph_segment_t *arena = claim->pool->arena.segments;
    oomph_span_t *span = &claim->span;

    if (arena == NULL ||
        !oomph_heap_span_at(arena, arena->base + claim->place, claim->bytes, span)) {
        claim->place = OOMPH_NO_PLACE;
        claim->pool->conflicts++;
        return NULL;
    }
    if (span->missing_count > 0 || oomph_slab_reserve(arena->heap->slab, 2) != OOMPH_OK)
        return NULL;
    return oomph_heap_take(span->block, span->addr, claim->bytes);
}

oomph_block_t *oomph_take(oomph_claim_t *claim)
{
    oomph_heap_t *heap = &claim->pool->heap;
    oomph_block_t *block = NULL;

    if (claim->place != OOMPH_NO_PLACE)
        block = take_planned(claim);
    if (block == NULL && claim->place == OOMPH_NO_PLACE)
        block = take_fit(heap, claim->bytes);
    if (block == NULL && oomph_heap_consolidate(heap))
        block = take_fit(heap, claim->bytes);
    return block;
}

/* ---- The ladder */

// Where the block goes: its planned place, or where the fewest pages are missing.
static oomph_gain_t find_span(oomph_claim_t *claim)
{
    if (claim->place != OOMPH_NO_PLACE ||
        oomph_heap_best_span(&claim->pool->heap, claim->bytes, &claim->span))
        return OOMPH_NOTHING;
    oomph_status_t status = oomph_pool_extend(claim->pool, claim->bytes);
    return status == OOMPH_OK ? OOMPH_GAINED : oomph_failed(claim, status);
}

static size_t available(const oomph_claim_t *claim)
{
    return oomph_pages_available(&claim->device->pages, OOMPH_TIER_DEVICE,
                                 claim->span.missing_count, oomph_is_essential(claim));
}

static oomph_gain_t rung_grow(oomph_claim_t *claim)
{
    if (available(claim) < claim->span.missing_count)
        return OOMPH_NOTHING;
    claim->device->stats.rungs[OOMPH_RUNG_GROW]++;
    oomph_status_t status = oomph_segment_map_span(&claim->span, &claim->device->pages);
    if (status == OOMPH_OK)
        return OOMPH_GAINED;
    return status == OOMPH_ERR_NO_MEMORY ? OOMPH_NOTHING : oomph_failed(claim, status);
}

// Free pages from elsewhere. First whether there are enough at all: waiting for too few
// would be in vain.
static oomph_gain_t rung_steal(oomph_claim_t *claim)
{
    oomph_device_t *device = claim->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE, .keep = claim->span};
    size_t have = available(claim);
    if (have >= claim->span.missing_count)
        return OOMPH_NOTHING; // the driver has fewer than it says

    size_t want = claim->span.missing_count - have;
    oomph_survey_t survey = oomph_steal_survey(device, &reach);
    if (survey.now + survey.later < want)
        return OOMPH_NOTHING;
    if (survey.now >= want) {
        device->stats.rungs[OOMPH_RUNG_STEAL]++;
        size_t got = oomph_steal(device, &reach, want, claim->pool->stream);
        return got > 0 ? OOMPH_GAINED : oomph_failed(claim, OOMPH_ERR_DRIVER);
    }
    device->stats.rungs[OOMPH_RUNG_WAIT]++;
    return oomph_wait_for_pages(device) ? OOMPH_GAINED : OOMPH_NOTHING;
}

// Whether the block would fit once all frees that wait for streams have happened.
static bool may_fit_later(const oomph_claim_t *claim)
{
    const oomph_device_t *device = claim->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE, .keep = claim->span};
    oomph_survey_t survey = oomph_steal_survey(claim->device, &reach);
    size_t bytes = 0;

    for (const oomph_uses_t *uses = device->deferred.first; uses != NULL;
         uses = uses->next)
        if (uses->block->tier == OOMPH_TIER_DEVICE)
            bytes += uses->block->bytes;
    return available(claim) + survey.now + survey.later +
               bytes / device->pages.page_bytes >=
           claim->span.missing_count;
}

// Frees that wait for other streams.
static oomph_gain_t rung_deferred(oomph_claim_t *claim)
{
    oomph_device_t *device = claim->device;

    if (device->deferred.count == 0)
        return OOMPH_NOTHING;
    device->stats.rungs[OOMPH_RUNG_DEFERRED]++;
    if (oomph_collect(device))
        return OOMPH_GAINED;
    oomph_clock_t *clock = oomph_streams_awaited(&device->streams);
    return clock != NULL && oomph_wait_for(device, clock) ? OOMPH_GAINED
                                                          : OOMPH_NOTHING;
}

// What PyTorch and the driver keep for themselves; asked once. Where it gave nothing
// lately, it is `last` asked, before the error.
static oomph_gain_t rung_callbacks(oomph_claim_t *claim, bool last)
{
    oomph_device_t *device = claim->device;
    const oomph_hooks_t *hooks = &oomph_process.hooks;

    int64_t allocated = oomph_counter_allocated(&device->counters.allocation);
    if (claim->asked || (!last && allocated < device->ask_again_at))
        return OOMPH_NOTHING;
    claim->asked = true;
    device->stats.rungs[OOMPH_RUNG_CALLBACKS]++;
    int64_t live = oomph_counter_current(&device->counters.allocation);
    size_t had = available(claim);
    oomph_unlock(device);
    if (hooks->free_memory != NULL)
        hooks->free_memory(device->ordinal);
    oomph_process.driver->trim(device->ordinal);
    oomph_enter(device);
    device->pages.known_free_bytes = 0; // ask the driver again
    bool gained = oomph_counter_current(&device->counters.allocation) < live ||
                  available(claim) > had;
    if (!gained)
        device->ask_again_at = allocated + ASK_EVERY;
    return gained ? OOMPH_GAINED : OOMPH_NOTHING;
}

// Also what others freed since the lock was taken comes before the host.
static oomph_gain_t rung_host(oomph_claim_t *claim, oomph_block_t **block)
{
    if (oomph_drain_queue(claim->device))
        return OOMPH_GAINED;
    oomph_gain_t gain = oomph_rung_garbage(claim, false);

    if (gain == OOMPH_NOTHING)
        gain = oomph_rung_host(claim, block);
    if (*block == NULL)
        return gain;
    claim->device->stats.rungs[OOMPH_RUNG_HOST]++;
    claim->born_on_host = true;
    return gain;
}

/* ---- Pools with a source of their own */

static bool has_source(const oomph_pool_t *pool)
{
    return pool->group != NULL && pool->group->has_source;
}

// What sources give counts for the limit, too.
static oomph_addr_t ask_source(const oomph_claim_t *claim, size_t bytes)
{
    oomph_device_t *device = claim->device;
    const oomph_source_t source = claim->pool->group->source;
    size_t held = oomph_pages_bytes(&device->pages, OOMPH_TIER_DEVICE);
    size_t limit = device->pages.limit_bytes;

    if (!has_source(claim->pool) || bytes > limit - oomph_min(held, limit))
        return 0;
    oomph_unlock(device);
    oomph_addr_t addr = source.take(source.context, bytes, claim->pool->stream->handle);
    oomph_enter(device);
    return addr;
}

static oomph_gain_t rung_source(oomph_claim_t *claim)
{
    oomph_device_t *device = claim->device;
    const oomph_source_t source = claim->pool->group->source;
    size_t bytes = oomph_round_up(claim->bytes, device->pages.page_bytes);
    oomph_segment_t *segment;

    oomph_addr_t addr = ask_source(claim, bytes);
    if (addr == 0 && has_source(claim->pool) &&
        oomph_return_device(device, bytes) > 0) // it may be what the source lacks
        addr = ask_source(claim, bytes);
    if (addr == 0)
        return has_source(claim->pool) ? OOMPH_NOTHING : OOMPH_GAINED;
    oomph_status_t status =
        oomph_segment_adopt(&claim->pool->heap, &device->pages, OOMPH_SEGMENT_FOREIGN,
                            OOMPH_TIER_DEVICE, addr, bytes, &segment);
    if (status == OOMPH_OK)
        return OOMPH_GAINED;
    oomph_unlock(device);
    source.give(source.context, addr);
    oomph_enter(device);
    return oomph_failed(claim, status);
}

// A free block of a pool that may be used before an error. Pages of such pools float;
// a source's memory is used where it lies.
static oomph_gain_t rung_lent(const oomph_claim_t *claim, oomph_block_t **block)
{
    if (claim->pool->group != NULL)
        return OOMPH_NOTHING;
    for (oomph_pool_t *pool = claim->device->pools; pool != NULL; pool = pool->next) {
        if (!has_source(pool) || (pool->group->flags & OOMPH_POOL_ON_OOM) == 0 ||
            pool->stream != claim->pool->stream || pool->small != claim->pool->small)
            continue;
        oomph_heap_consolidate(&pool->heap);
        *block = take_fit(&pool->heap, claim->bytes);
        if (*block != NULL)
            return OOMPH_GAINED;
    }
    return OOMPH_NOTHING;
}

/* ---- Climbing */

// The rungs in their order, up to the first that changes something.
static oomph_gain_t next_rung(oomph_claim_t *claim, oomph_block_t **block)
{
    if (has_source(claim->pool)) {
        oomph_gain_t source = rung_source(claim);
        return source == OOMPH_NOTHING ? oomph_rung_garbage(claim, true) : source;
    }
    if (oomph_drain_queue(claim->device) ||
        (claim->device->deferred.count > 0 && oomph_collect(claim->device)))
        return OOMPH_GAINED;
    oomph_gain_t gain = find_span(claim);
    if (gain == OOMPH_NOTHING)
        gain = rung_grow(claim);
    if (gain == OOMPH_NOTHING && claim->place == OOMPH_NO_PLACE &&
        !claim->pool->small) {
        *block = take_fit(&claim->pool->arena, claim->bytes);
        gain = *block != NULL ? OOMPH_GAINED : OOMPH_NOTHING;
    }
    if (gain == OOMPH_NOTHING)
        gain = rung_steal(claim);
    if (gain == OOMPH_NOTHING && claim->place != OOMPH_NO_PLACE) {
        claim->place = OOMPH_NO_PLACE; // there are not enough pages for the plan
        return OOMPH_GAINED;
    }
    if (gain == OOMPH_NOTHING)
        gain = rung_lent(claim, block);
    if (gain == OOMPH_NOTHING && claim->foreseen && !may_fit_later(claim))
        gain = rung_host(claim, block);
    if (gain == OOMPH_NOTHING)
        gain = rung_deferred(claim);
    if (gain == OOMPH_NOTHING)
        gain = rung_callbacks(claim, false);
    if (gain == OOMPH_NOTHING)
        gain = rung_host(claim, block);
    if (gain == OOMPH_NOTHING)
        gain = rung_callbacks(claim, true);
    if (gain == OOMPH_NOTHING)
        gain = oomph_rung_garbage(claim, true);
    return gain;
}

static oomph_status_t give_up(oomph_claim_t *claim)
{
    oomph_device_t *device = claim->device;
    size_t free_bytes, total_bytes;

    // A driver that fails at everything is not out of memory.
    oomph_status_t status =
        oomph_process.driver->memory_info(device->ordinal, &free_bytes, &total_bytes);
    if (status != OOMPH_OK)
        return status;
    device->stats.rungs[OOMPH_RUNG_ERROR]++;
    device->stats.oom_count++;
    device->stats.oom_missing_bytes = (int64_t)oomph_missing_bytes(claim);
    if (has_source(claim->pool))
        return oomph_fail(OOMPH_ERR_NO_MEMORY,
                          "the allocator of the MemPool gave nothing for %s, and "
                          "nothing of the pool is free; its memory is its allocator's "
                          "business, not oomph's",
                          oomph_size_text(claim->bytes).text);
    return oomph_fail(
        OOMPH_ERR_NO_MEMORY,
        "no room for %s: %s of %s in use, %s free (%s reserved); %s%s",
        oomph_size_text(claim->bytes).text,
        oomph_size_text(oomph_pages_bytes(&device->pages, OOMPH_TIER_DEVICE)).text,
        oomph_size_text(total_bytes).text, oomph_size_text(free_bytes).text,
        oomph_size_text(device->pages.reserve_bytes).text, oomph_host_refusal(claim),
        claim->uncollected != NULL ? claim->uncollected : "");
}

oomph_status_t oomph_climb(oomph_claim_t *claim, oomph_block_t **block)
{
    oomph_device_t *device = claim->device;
    int64_t start = oomph_now_ns();
    int64_t low_rungs = device->stats.rungs[OOMPH_RUNG_GROW];
    int64_t syncs = device->stats.sync_count;
    oomph_status_t status = OOMPH_OK;
    oomph_gain_t gain = OOMPH_GAINED;

    while (gain == OOMPH_GAINED && *block == NULL) {
        gain = next_rung(claim, block);
        if (gain == OOMPH_GAINED && *block == NULL)
            *block = oomph_take(claim);
    }
    if (gain == OOMPH_FAILED)
        status = claim->status;
    else if (*block == NULL)
        status = give_up(claim);
    else
        oomph_garbage_helped(claim);
    // Where there was nothing to wait for, PyTorch counts all the same.
    if (status == OOMPH_ERR_NO_MEMORY && device->stats.sync_count == syncs)
        device->stats.sync_count++;
    device->stats.retry_count += device->stats.rungs[OOMPH_RUNG_GROW] == low_rungs;
    device->stats.driver_ns += oomph_now_ns() - start;
    return status;
}
