/* alloc.c - giving out memory (oomph/memory.h): the lock, the books, and the order of
 * steps.
 *
 * - A request is rounded to 512 bytes and served from the pool of its stream, its graph
 *   or MemPool, and its size class. Blocks of at most 1 MiB never share pages with
 *   larger ones.
 * - The quick list of that size serves it; where it is empty, ladder.c finds a block.
 * - Blocks that return at their address (oomph/pool.h), and buffers on the host for
 *   copies (oomph/planner.h), are entered in the same books.
 */
#include "core/alloc/demand.h"
#include "core/alloc/free.h"
#include "core/alloc/host.h"
#include "core/alloc/host_refusal.h"
#include "core/alloc/ladder.h"
#include "core/device/arena.h"
#include "core/device/guard.h"
#include "core/heap/index.h"

#include <stdlib.h>

#define BYTES_MAX ((size_t)1 << 47) // more than any address space
enum { COLLECT_EVERY = 8 };         // allocations between looks at deferred frees

/* ---- Allocating */

// Where the layout puts the block, and its number in the record.
static void consult_layout(oomph_request_context_t *ctx, uint32_t *number)
{
    oomph_pool_t *pool = ctx->pool;

    ctx->place = oomph_layout_next(&pool->layout, ctx->bytes);
    if (pool->layout.places != NULL) {
        int64_t *count = ctx->place != OOMPH_NO_PLACE
                             ? &ctx->device->stats.layout_hits
                             : &ctx->device->stats.layout_misses;
        (*count)++;
    }
    if (pool->layout.places == NULL && pool->arena.segments != NULL)
        oomph_arena_rebuild(pool); // the layout has just been dropped
    *number = oomph_layout_note(&pool->layout, ctx->bytes);
    if (!ctx->device->under_pressure)
        pool->layout.record.found_period = 0; // there is room enough without a layout
    if (pool->layout.record.found_period != 0)
        oomph_arena_rebuild(pool);
}

static void count_block(oomph_device_t *device, const oomph_block_t *block, bool small)
{
    int64_t bytes = (int64_t)block->bytes;

    if (block->tier == OOMPH_TIER_HOST) {
        int64_t host_bytes = (int64_t)oomph_block_host_bytes(block);
        device->stats.host_used_bytes += host_bytes;
        oomph_level_up(&device->host_need.live, host_bytes);
        oomph_tier_usage_move(&device->allocated_usage,
                              &device->counters.allocated_bytes, host_bytes);
        oomph_tier_usage_move(&device->active_usage, &device->counters.active_bytes,
                              host_bytes);
    }
    oomph_counter_up(&device->counters.allocation, small, 1);
    oomph_counter_up(&device->counters.active, small, 1);
    oomph_counter_up(&device->counters.allocated_bytes, small, bytes);
    oomph_counter_up(&device->counters.active_bytes, small, bytes);
    oomph_counter_up(&device->counters.requested_bytes, small,
                     (int64_t)block->use.requested_bytes);
}

// Makes sure that a block can be entered into the books.
static oomph_status_t reserve_records(oomph_device_t *device,
                                      const oomph_request_t *request)
{
    oomph_status_t status = oomph_table_reserve(&device->table);

    if (status == OOMPH_OK && request->site != 0)
        status = oomph_site_counters_reserve(&device->sites, request->site);
    return status;
}

// Enters a block that was taken into the books; gives it back if that fails.
static oomph_status_t enter(oomph_device_t *device, const oomph_request_t *request,
                            oomph_block_t *block)
{
    oomph_status_t status = reserve_records(device, request);
    oomph_site_t site = request->site;

    oomph_assert(block != NULL);
    if (status != OOMPH_OK) {
        oomph_heap_give(block);
        return status;
    }
    block->use.requested_bytes = request->bytes;
    block->use.user = request->user;
    block->site = site;
    if (site != 0)
        oomph_site_count(&device->sites, site, (int64_t)block->bytes);
    oomph_table_add(&device->table, block);
    return OOMPH_OK;
}

// `small`: of a pool of small blocks.
static inline oomph_status_t hand_out(oomph_device_t *device,
                                      const oomph_request_t *request,
                                      oomph_block_t *block, bool small)
{
    oomph_status_t status = enter(device, request, block);

    if (status == OOMPH_OK)
        count_block(device, block, small);
    return status;
}

static void count_host_fallback(oomph_request_context_t *ctx,
                                const oomph_block_t *block)
{
    oomph_device_t *device = ctx->device;
    int64_t bytes = (int64_t)oomph_block_host_bytes(block);
    size_t ahead = oomph_process.config.host_ahead_bytes / device->pages.page_bytes;

    oomph_host_prediction_note(&device->host_prediction, block->bytes);
    if (ctx->host_expected) {
        device->stats.predicted_count++;
        device->stats.predicted_bytes += bytes;
        device->step_buffers++;
        return;
    }
    ctx->rescued = ++device->stats.rescues - device->step_start_rescues;
    ctx->rescued_bytes = (size_t)bytes;
    device->stats.rescued_bytes += bytes;
    if (ahead > 0 && device->pages.host_kind != OOMPH_HOST_PINNED)
        oomph_ahead_want(&device->ahead, ahead);
}

static oomph_status_t hand_out_slowly(const oomph_request_context_t *ctx,
                                      oomph_block_t *block)
{
    oomph_device_t *device = ctx->device;
    oomph_uses_t *uses = NULL;

    if (oomph_process.config.guard == OOMPH_GUARD_OFF)
        return hand_out(device, ctx->request, block, ctx->pool->small);
    // A block that was filled must not be given back as if nothing used it.
    oomph_status_t status = reserve_records(device, ctx->request);
    if (status == OOMPH_OK)
        status = oomph_guard_admit(device, block, ctx->request, &uses);
    if (status != OOMPH_OK) {
        oomph_heap_give(block);
        return status;
    }
    status = hand_out(device, ctx->request, block, ctx->pool->small);
    if (status != OOMPH_OK)
        oomph_uses_free(uses);
    else if (uses != NULL)
        oomph_guard_attach(device, block, uses);
    return status;
}

// The way of a request that no quick list serves.
static oomph_status_t allocate(oomph_request_context_t *ctx, oomph_block_t **out)
{
    oomph_status_t status = OOMPH_OK;
    uint32_t number = 0;

    bool planned =
        !ctx->pool->small && ctx->pool->group == NULL && oomph_process.config.plan;
    if (planned)
        consult_layout(ctx, &number);
    oomph_block_t *block = oomph_take(ctx);
    if (block == NULL)
        status = oomph_reclaim(ctx, &block);
    if (status == OOMPH_OK)
        status = hand_out_slowly(ctx, block);
    if (status != OOMPH_OK)
        return status;
    block->recorded = planned;
    block->record = number;
    if (ctx->fell_back_to_host)
        count_host_fallback(ctx, block);
    *out = block;
    return OOMPH_OK;
}

// Apart, so that the way of a block from a quick list saves no registers for it.
__attribute__((noinline)) static oomph_status_t
allocate_slowly(const oomph_request_t *request, oomph_device_t *device,
                oomph_pool_t *pool, size_t bytes, oomph_block_t **block)
{
    oomph_request_context_t ctx = {
        .request = request,
        .device = device,
        .pool = pool,
        .bytes = bytes,
        .place = OOMPH_NO_PLACE,
        .host_expected = oomph_host_is_predicted(&device->host_prediction, bytes)};

    pool->users++;
    oomph_status_t status = allocate(&ctx, block);
    oomph_demand_note(&ctx, status == OOMPH_OK ? *block : NULL);
    pool->users--;
    if (ctx.rescued > 0 && oomph_process.hooks.rescued != NULL) {
        oomph_unlock(device);
        oomph_process.hooks.rescued(request->device, ctx.rescued_bytes, ctx.rescued);
        oomph_enter(device);
    }
    return status;
}

static size_t block_bytes(const oomph_request_t *request)
{
    return oomph_round_up(oomph_max(request->bytes, request->block_bytes),
                          OOMPH_ROUND_BYTES);
}

oomph_status_t oomph_malloc(const oomph_request_t *request, oomph_addr_t *addr)
{
    size_t bytes = block_bytes(request);
    oomph_block_t *block = NULL;
    oomph_device_t *device;
    oomph_pool_t *pool;

    if (request->bytes == 0) {
        *addr = 0;
        return OOMPH_OK;
    }
    oomph_status_t status = oomph_device_get(request->device, &device);
    if (status != OOMPH_OK)
        return status;
    if (request->bytes > BYTES_MAX || bytes > BYTES_MAX)
        return oomph_fail(OOMPH_ERR_NO_MEMORY,
                          "%zu bytes are more than any address space", request->bytes);
    if (oomph_process.config.guard != OOMPH_GUARD_OFF)
        bytes = oomph_guard_bytes(device, request->pool, bytes);
    oomph_enter(device);
    if (device->deferred.count > 0 && ++device->deferred_tick % COLLECT_EVERY == 0)
        oomph_collect(device);
    status = oomph_pool_get(device, request, bytes, &pool);
    if (status == OOMPH_OK)
        block = oomph_heap_quick_pop(&pool->heap, bytes);
    if (__builtin_expect(block != NULL, true))
        status = hand_out(device, request, block, pool->small);
    else if (status == OOMPH_OK)
        status = allocate_slowly(request, device, pool, bytes, &block);
    if (status == OOMPH_OK)
        *addr = block->addr;
    oomph_unlock(device);
    return status;
}

static oomph_status_t revive(oomph_request_context_t *ctx, oomph_addr_t addr)
{
    oomph_status_t status =
        oomph_pool_get(ctx->device, ctx->request, ctx->bytes, &ctx->pool);
    if (status == OOMPH_OK)
        status = oomph_slab_reserve(&ctx->device->slab, 2);
    if (status != OOMPH_OK)
        return status;
    oomph_heap_consolidate(&ctx->pool->heap);
    oomph_segment_t *segment = ctx->pool->heap.segments;
    while (segment != NULL && addr - segment->base >= segment->bytes)
        segment = segment->next;
    oomph_span_t *span = &ctx->span;
    if (segment == NULL || !oomph_heap_span_at(segment, addr, ctx->bytes, span) ||
        span->missing_count > 0)
        return oomph_fail(OOMPH_ERR_INVALID, "0x%llx is not free in its pool",
                          (unsigned long long)addr);
    return hand_out(ctx->device, ctx->request,
                    oomph_heap_take(span->block, addr, ctx->bytes), ctx->pool->small);
}

oomph_status_t oomph_revive(const oomph_request_t *request, oomph_addr_t addr)
{
    oomph_request_context_t ctx = {.request = request, .bytes = block_bytes(request)};

    oomph_status_t status = oomph_device_get(request->device, &ctx.device);
    if (status != OOMPH_OK)
        return status;
    oomph_enter(ctx.device);
    status = revive(&ctx, addr);
    oomph_unlock(ctx.device);
    return status;
}

/* ---- Buffers on the host */

static oomph_status_t take_buffer(oomph_request_context_t *ctx, oomph_block_t **block)
{
    oomph_status_t status =
        oomph_pool_get(ctx->device, ctx->request, ctx->bytes, &ctx->pool);
    if (status != OOMPH_OK)
        return status;
    oomph_collect(ctx->device);
    while (oomph_heap_fit_host(&ctx->pool->heap, ctx->bytes) == NULL &&
           oomph_overtake(ctx->device, ctx->pool))
        ;
    oomph_rung_result_t result = oomph_rung_host(ctx, block);
    if (result == OOMPH_FAIL)
        return ctx->status;
    if (result == OOMPH_NEXT)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no buffer of %s on the host: %s",
                          oomph_size_text(ctx->bytes).text, oomph_host_refusal(ctx));
    status = enter(ctx->device, ctx->request, *block);
    if (status != OOMPH_OK)
        return status;
    (*block)->buffer = true;
    ctx->device->stats.buffer_bytes += (int64_t)(*block)->bytes;
    ctx->device->step_buffers++;
    oomph_level_up(&ctx->device->host_need.live, (int64_t)(*block)->bytes);
    return OOMPH_OK;
}

oomph_status_t oomph_buffer(int ordinal, size_t bytes, oomph_stream_t stream,
                            oomph_addr_t *addr)
{
    oomph_request_t request = {
        .device = ordinal, .bytes = bytes, .stream = stream, .stream_lives = true};
    oomph_request_context_t ctx = {.request = &request,
                                   .place = OOMPH_NO_PLACE,
                                   .host_expected = true,
                                   .buffer = true};
    oomph_block_t *block = NULL;

    if (bytes == 0 || bytes > BYTES_MAX)
        return oomph_fail(OOMPH_ERR_INVALID, "no buffer has %zu bytes", bytes);
    oomph_status_t status = oomph_device_get(ordinal, &ctx.device);
    if (status != OOMPH_OK)
        return status;
    ctx.bytes = oomph_round_up(bytes, ctx.device->pages.page_bytes);
    oomph_enter(ctx.device);
    status = take_buffer(&ctx, &block);
    if (status == OOMPH_OK)
        *addr = block->addr;
    oomph_unlock(ctx.device);
    return status;
}
