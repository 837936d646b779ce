/* ladder.c - where a block comes from when no quick list has one: a hit, or the only
 * ladder.
 *
 * - A large block that comes as in the recorded step takes its planned place. Any other
 *   takes the free block that fits best. Both are hits: no driver call.
 * - On a miss the block is placed where the fewest pages are missing, and the ladder is
 *   climbed for these: spare and new pages, up to the limit; free pages of other holes
 *   and streams, at once if their work has finished, else after waiting for it; what
 *   PyTorch and the driver cache themselves; host pages; the reserve; the error.
 * - Before a block falls back to the host, and before the error, the collector is
 *   asked to free what the program can no longer reach. Then, before it falls back,
 *   what will be used last is sent to the host in its place.
 * - Each rung is climbed again only if something changed. Waiting happens without
 *   the lock; another thread that would have to wait takes the first one's result.
 * - A hit costs a search of the index. A miss costs a map for each page that is
 *   missing, and for most rungs a walk over the free blocks, which is little beside it;
 *   the waits, where they are needed, cost most. So what needs none comes first.
 */
#include "core/alloc/ladder.h"
#include "core/alloc/free.h"
#include "core/alloc/garbage.h"
#include "core/alloc/host.h"
#include "core/alloc/host_refusal.h"
#include "core/alloc/room.h"
#include "core/alloc/split.h"
#include "core/alloc/trim.h"
#include "core/device/steal.h"
#include "core/heap/index.h"

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
// the place is taken, the layout is not followed this time.
static oomph_block_t *take_planned(oomph_request_context_t *ctx)
{
    oomph_segment_t *arena = ctx->pool->arena.segments;
    oomph_span_t *span = &ctx->span;

    if (arena == NULL ||
        !oomph_heap_span_at(arena, arena->base + ctx->place, ctx->bytes, span)) {
        ctx->place = OOMPH_NO_PLACE;
        ctx->pool->conflicts++;
        return NULL;
    }
    if (span->missing_count > 0 || oomph_slab_reserve(arena->heap->slab, 2) != OOMPH_OK)
        return NULL;
    return oomph_heap_take(span->block, span->addr, ctx->bytes);
}

oomph_block_t *oomph_take(oomph_request_context_t *ctx)
{
    oomph_heap_t *heap = &ctx->pool->heap;
    oomph_block_t *block = NULL;

    if (ctx->place != OOMPH_NO_PLACE)
        block = take_planned(ctx);
    if (block == NULL && ctx->place == OOMPH_NO_PLACE)
        block = take_fit(heap, ctx->bytes);
    if (block == NULL && oomph_heap_consolidate(heap))
        block = take_fit(heap, ctx->bytes);
    return block;
}

/* ---- The ladder */

// Where the block goes: its planned place, or where the fewest pages are missing.
static oomph_rung_result_t find_span(oomph_request_context_t *ctx)
{
    if (ctx->place != OOMPH_NO_PLACE ||
        oomph_heap_best_span(&ctx->pool->heap, ctx->bytes, &ctx->span))
        return OOMPH_NEXT;
    oomph_status_t status = oomph_pool_extend(ctx->pool, ctx->bytes);
    return status == OOMPH_OK ? OOMPH_RETRY : oomph_rung_fail(ctx, status);
}

static size_t available(const oomph_request_context_t *ctx)
{
    return oomph_pages_available(&ctx->device->pages, OOMPH_TIER_DEVICE,
                                 ctx->span.missing_count, oomph_kept_reserve(ctx));
}

static oomph_rung_result_t rung_grow(oomph_request_context_t *ctx)
{
    if (available(ctx) < ctx->span.missing_count)
        return OOMPH_NEXT;
    ctx->device->stats.rungs[OOMPH_RUNG_GROW]++;
    oomph_status_t status = oomph_segment_map_span(&ctx->span, &ctx->device->pages);
    if (status == OOMPH_OK)
        return OOMPH_RETRY;
    return status == OOMPH_ERR_NO_MEMORY ? OOMPH_NEXT : oomph_rung_fail(ctx, status);
}

// Free pages from elsewhere. First whether there are enough at all: waiting for too few
// would be in vain.
static oomph_rung_result_t rung_steal(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE,
                           .keep = ctx->span,
                           .thief = oomph_may_alias(ctx->pool) ? ctx->pool : NULL};
    size_t have = available(ctx);
    if (have >= ctx->span.missing_count)
        return OOMPH_NEXT; // the driver has fewer than it says

    size_t want = ctx->span.missing_count - have;
    oomph_survey_t survey = oomph_steal_survey(device, &reach);
    if (survey.now + survey.later < want)
        return OOMPH_NEXT;
    if (survey.now >= want) {
        device->stats.rungs[OOMPH_RUNG_STEAL]++;
        size_t got = oomph_steal(device, &reach, want, ctx->pool->stream);
        return got > 0 ? OOMPH_RETRY : oomph_rung_fail(ctx, OOMPH_ERR_DRIVER);
    }
    if (survey.now + survey.own >= want &&
        oomph_steal_own(device, &reach, want - survey.now) > 0) {
        device->stats.rungs[OOMPH_RUNG_STEAL]++;
        return OOMPH_RETRY;
    }
    device->stats.rungs[OOMPH_RUNG_WAIT]++;
    return oomph_wait_for_pages(device) ? OOMPH_RETRY : OOMPH_NEXT;
}

// Whether the block would fit once all frees that wait for streams have happened.
static bool may_fit_later(const oomph_request_context_t *ctx)
{
    const oomph_device_t *device = ctx->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE, .keep = ctx->span};
    oomph_survey_t survey = oomph_steal_survey(ctx->device, &reach);
    size_t bytes = 0;

    for (const oomph_uses_t *uses = device->deferred.first; uses != NULL;
         uses = uses->next)
        if (uses->block->tier == OOMPH_TIER_DEVICE)
            bytes += uses->block->bytes;
    return available(ctx) + survey.now + survey.later +
               bytes / device->pages.page_bytes >=
           ctx->span.missing_count;
}

// Frees that wait for other streams.
static oomph_rung_result_t rung_deferred(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;

    if (device->deferred.count == 0)
        return OOMPH_NEXT;
    device->stats.rungs[OOMPH_RUNG_DEFERRED]++;
    if (oomph_collect(device))
        return OOMPH_RETRY;
    oomph_clock_t *clock = oomph_streams_awaited(&device->streams);
    return clock != NULL && oomph_wait_for(device, clock) ? OOMPH_RETRY : OOMPH_NEXT;
}

// What PyTorch and the driver keep for themselves; asked once. Where it gave nothing
// lately, it is `last` asked, before the error.
static oomph_rung_result_t rung_callbacks(oomph_request_context_t *ctx, bool last)
{
    oomph_device_t *device = ctx->device;
    const oomph_hooks_t *hooks = &oomph_process.hooks;

    int64_t allocated = oomph_counter_allocated(&device->counters.allocation);
    if (ctx->asked || (!last && allocated < device->ask_again_at))
        return OOMPH_NEXT;
    ctx->asked = true;
    device->stats.rungs[OOMPH_RUNG_CALLBACKS]++;
    int64_t live = oomph_counter_current(&device->counters.allocation);
    size_t had = available(ctx);
    oomph_unlock(device);
    if (hooks->free_memory != NULL)
        hooks->free_memory(device->ordinal);
    oomph_process.driver->trim(device->ordinal);
    oomph_enter(device);
    device->pages.known_free_bytes = 0; // ask the driver again
    bool freed = oomph_counter_current(&device->counters.allocation) < live ||
                 available(ctx) > had;
    if (!freed)
        device->ask_again_at = allocated + ASK_EVERY;
    return freed ? OOMPH_RETRY : OOMPH_NEXT;
}

// Also what others freed since the lock was taken comes before the host.
static oomph_rung_result_t rung_host(oomph_request_context_t *ctx,
                                     oomph_block_t **block)
{
    if (oomph_drain_queue(ctx->device))
        return OOMPH_RETRY;
    oomph_rung_result_t result = oomph_rung_garbage(ctx, false);

    if (result == OOMPH_NEXT)
        result = oomph_rung_room(ctx);
    if (result == OOMPH_NEXT)
        result = oomph_rung_host(ctx, block);
    if (*block == NULL)
        return result;
    ctx->device->stats.rungs[OOMPH_RUNG_HOST]++;
    ctx->fell_back_to_host = true;
    return result;
}

// What is left free for libraries is worth less than what would fail now. It comes
// before what takes long, as a program may need it in each step. But a trial is to fail
// where there is no other room.
static oomph_rung_result_t rung_reserve(oomph_request_context_t *ctx)
{
    if (ctx->spends_reserve || oomph_offload_is_forbidden_by(OOMPH_BAN_TRIAL))
        return OOMPH_NEXT;
    ctx->spends_reserve = true;
    if (available(ctx) == 0)
        return OOMPH_NEXT;
    ctx->device->needs_reserve = true;
    return OOMPH_RETRY;
}

/* ---- Pools with a source of their own */

static bool has_source(const oomph_pool_t *pool)
{
    return pool->group != NULL && pool->group->has_source;
}

// What sources give counts for the limit, too.
static oomph_addr_t ask_source(const oomph_request_context_t *ctx, size_t bytes)
{
    oomph_device_t *device = ctx->device;
    const oomph_source_t source = ctx->pool->group->source;
    size_t held = oomph_pages_bytes(&device->pages, OOMPH_TIER_DEVICE);
    size_t limit = device->pages.limit_bytes;

    if (!has_source(ctx->pool) || bytes > limit - oomph_min(held, limit))
        return 0;
    oomph_unlock(device);
    oomph_addr_t addr = source.take(source.context, bytes, ctx->pool->stream->handle);
    oomph_enter(device);
    return addr;
}

static oomph_rung_result_t rung_source(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    const oomph_source_t source = ctx->pool->group->source;
    size_t bytes = oomph_round_up(ctx->bytes, device->pages.page_bytes);
    oomph_segment_t *segment;

    oomph_addr_t addr = ask_source(ctx, bytes);
    if (addr == 0 && has_source(ctx->pool) &&
        oomph_return_device(device, bytes) > 0) // it may be what the source lacks
        addr = ask_source(ctx, bytes);
    if (addr == 0)
        return has_source(ctx->pool) ? OOMPH_NEXT : OOMPH_RETRY;
    oomph_status_t status =
        oomph_segment_adopt(&ctx->pool->heap, &device->pages, OOMPH_SEGMENT_FOREIGN,
                            OOMPH_TIER_DEVICE, addr, bytes, &segment);
    if (status == OOMPH_OK)
        return OOMPH_RETRY;
    oomph_unlock(device);
    source.give(source.context, addr);
    oomph_enter(device);
    return oomph_rung_fail(ctx, status);
}

// A free block of a pool that may be used before an error. Pages of such pools float;
// a source's memory is used where it lies.
static oomph_rung_result_t rung_lent(const oomph_request_context_t *ctx,
                                     oomph_block_t **block)
{
    if (ctx->pool->group != NULL)
        return OOMPH_NEXT;
    for (oomph_pool_t *pool = ctx->device->pools; pool != NULL; pool = pool->next) {
        if (!has_source(pool) || (pool->group->flags & OOMPH_POOL_ON_OOM) == 0 ||
            pool->stream != ctx->pool->stream || pool->small != ctx->pool->small)
            continue;
        oomph_heap_consolidate(&pool->heap);
        *block = take_fit(&pool->heap, ctx->bytes);
        if (*block != NULL)
            return OOMPH_RETRY;
    }
    return OOMPH_NEXT;
}

/* ---- Reclaiming */

// The rungs in their order, up to the first that changes something.
static oomph_rung_result_t next_rung(oomph_request_context_t *ctx,
                                     oomph_block_t **block)
{
    if (has_source(ctx->pool)) {
        oomph_rung_result_t source = rung_source(ctx);
        return source == OOMPH_NEXT ? oomph_rung_garbage(ctx, true) : source;
    }
    if (oomph_drain_queue(ctx->device) ||
        (ctx->device->deferred.count > 0 && oomph_collect(ctx->device)))
        return OOMPH_RETRY;
    oomph_rung_result_t result = find_span(ctx);
    if (result == OOMPH_NEXT)
        result = rung_grow(ctx);
    if (result == OOMPH_NEXT && ctx->place == OOMPH_NO_PLACE && !ctx->pool->small) {
        *block = take_fit(&ctx->pool->arena, ctx->bytes);
        result = *block != NULL ? OOMPH_RETRY : OOMPH_NEXT;
    }
    if (result == OOMPH_NEXT)
        result = rung_steal(ctx);
    if (result == OOMPH_NEXT && ctx->place != OOMPH_NO_PLACE) {
        ctx->place = OOMPH_NO_PLACE; // there are not enough pages for the layout
        return OOMPH_RETRY;
    }
    if (result == OOMPH_NEXT)
        result = rung_lent(ctx, block);
    // Where it may lie on both tiers, each page that comes free later is worth the
    // wait.
    if (result == OOMPH_NEXT && ctx->host_expected && !oomph_splits(ctx) &&
        !may_fit_later(ctx))
        result = rung_host(ctx, block);
    if (result == OOMPH_NEXT)
        result = rung_deferred(ctx);
    if (result == OOMPH_NEXT && ctx->host_expected && oomph_splits(ctx))
        result = rung_host(ctx, block);
    if (result == OOMPH_NEXT)
        result = rung_callbacks(ctx, false);
    if (result == OOMPH_NEXT)
        result = rung_host(ctx, block);
    if (result == OOMPH_NEXT)
        result = rung_reserve(ctx);
    if (result == OOMPH_NEXT)
        result = rung_callbacks(ctx, true);
    if (result == OOMPH_NEXT)
        result = oomph_rung_garbage(ctx, true);
    return result;
}

static oomph_status_t give_up(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    size_t free_bytes, total_bytes;

    // A driver that fails at everything is not out of memory.
    oomph_status_t status =
        oomph_process.driver->memory_info(device->ordinal, &free_bytes, &total_bytes);
    if (status != OOMPH_OK)
        return status;
    device->stats.rungs[OOMPH_RUNG_ERROR]++;
    device->stats.oom_count++;
    device->stats.oom_missing_bytes = (int64_t)oomph_missing_bytes(ctx);
    if (has_source(ctx->pool))
        return oomph_fail(OOMPH_ERR_NO_MEMORY,
                          "the MemPool's own allocator gave no memory for %s, and the "
                          "pool has no free block; oomph adds no memory to such a pool",
                          oomph_size_text(ctx->bytes).text);
    return oomph_fail(
        OOMPH_ERR_NO_MEMORY, "no room for %s: %s of %s in use, %s free; %s%s",
        oomph_size_text(ctx->bytes).text,
        oomph_size_text(oomph_pages_bytes(&device->pages, OOMPH_TIER_DEVICE)).text,
        oomph_size_text(total_bytes).text, oomph_size_text(free_bytes).text,
        oomph_host_refusal(ctx), ctx->uncollected != NULL ? ctx->uncollected : "");
}

oomph_status_t oomph_reclaim(oomph_request_context_t *ctx, oomph_block_t **block)
{
    oomph_device_t *device = ctx->device;
    int64_t start = oomph_now_ns();
    int64_t low_rungs = device->stats.rungs[OOMPH_RUNG_GROW];
    int64_t syncs = device->stats.sync_count;
    oomph_status_t status = OOMPH_OK;
    oomph_rung_result_t result = OOMPH_RETRY;

    while (result == OOMPH_RETRY && *block == NULL) {
        result = next_rung(ctx, block);
        if (result == OOMPH_RETRY && *block == NULL)
            *block = oomph_take(ctx);
    }
    if (result == OOMPH_FAIL) {
        status = ctx->status;
        device->stats.oom_missing_bytes = 0; // something else was short
    } else if (*block == NULL) {
        status = give_up(ctx);
    } else {
        oomph_garbage_helped(ctx);
    }
    // Where there was nothing to wait for, PyTorch counts all the same.
    if (status == OOMPH_ERR_NO_MEMORY && device->stats.sync_count == syncs)
        device->stats.sync_count++;
    device->stats.retry_count += device->stats.rungs[OOMPH_RUNG_GROW] == low_rungs;
    device->stats.driver_ns += oomph_now_ns() - start;
    return status;
}
