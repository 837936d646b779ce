/* host.c - the rung of the ladder on which a block falls back to the host.
 *
 * The block begins on device pages as far as there are any (split.c). It lies on host
 * pages alone where there are none, or no block may be split; they are mapped at an
 * ordinary address of its pool. If only that works, it lies in a page-locked
 * allocation. Host memory is made without the lock, as it takes seconds for tens of
 * GiB. Blocks of MemPools never come here. While a stream captures, only blocks of
 * graphs do, on what their pool has ready. Small blocks and workspaces may use half of
 * the headroom first; they come here only when that is used up.
 */
#include "core/alloc/host.h"
#include "core/alloc/free.h"
#include "core/alloc/host_refusal.h"
#include "core/alloc/split.h"
#include "core/alloc/trim.h"
#include "core/heap/index.h"
#include "core/memory/access.h"

enum { PIECE = 64 }; // pages made before they are entered

/* ---- Making pages */

// Makes up to `count` pages and enters them. The caller has stepped aside.
static oomph_status_t make_piece(oomph_device_t *device, size_t count)
{
    oomph_pages_t *pages = &device->pages;
    oomph_status_t status = OOMPH_OK;
    oomph_handle_t made[PIECE];
    size_t done = 0;

    while (done < count && status == OOMPH_OK) {
        status = oomph_host_page_make(pages, &made[done]);
        done += status == OOMPH_OK;
    }
    oomph_enter(device);
    for (size_t i = 0; i < done; i++) {
        oomph_status_t kept = oomph_page_adopt(pages, OOMPH_TIER_HOST, made[i]);
        if (kept != OOMPH_OK) {
            oomph_host_page_drop(pages, made[i]);
            status = kept;
        }
    }
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_make_host_pages(oomph_device_t *device, size_t count)
{
    size_t missing = count - device->pages.tiers[OOMPH_TIER_HOST].spare_count;
    oomph_status_t status = OOMPH_OK;
    void *state = oomph_step_aside(device);

    while (missing > 0 && status == OOMPH_OK) {
        size_t piece = oomph_min(missing, PIECE);
        status = make_piece(device, piece);
        missing -= piece;
    }
    oomph_step_back(device, state);
    return status;
}

/* ---- Host memory for a block */

// Of host bytes that are wanted, those that are beyond the limit.
static size_t beyond_limit(const oomph_host_limit_t *host, size_t bytes)
{
    uint64_t used = atomic_load(&host->used_bytes);
    size_t room = host->limit_bytes > used ? host->limit_bytes - used : 0;

    return bytes > room ? bytes - room : 0;
}

// Gives back page-locked blocks that nothing uses, or waits for them, if `least` bytes
// of them are there: they cannot be put together.
static oomph_rung_result_t return_pinned(oomph_request_context_t *ctx, size_t least,
                                         size_t bytes)
{
    oomph_device_t *device = ctx->device;
    size_t page_bytes = device->pages.page_bytes;
    size_t want = oomph_round_up(least, page_bytes) / page_bytes;
    oomph_survey_t survey = oomph_pinned_survey(device);

    if (survey.now + survey.later < want)
        return OOMPH_NEXT;
    if (survey.now < want)
        return oomph_wait_for_pages(device) ? OOMPH_RETRY : OOMPH_NEXT;
    return oomph_return_pinned(device, bytes) > 0 ? OOMPH_RETRY : OOMPH_NEXT;
}

static oomph_rung_result_t pinned_block(oomph_request_context_t *ctx)
{
    oomph_pages_t *pages = &ctx->device->pages;
    size_t bytes = oomph_round_up(ctx->bytes, pages->page_bytes);
    oomph_segment_t *segment;
    oomph_addr_t addr;

    if (!oomph_host_limit_take(pages->host, bytes)) {
        size_t beyond = oomph_max(beyond_limit(pages->host, bytes), 1);
        return return_pinned(ctx, beyond, beyond);
    }
    void *state = oomph_step_aside(ctx->device);
    oomph_status_t status = pages->driver->pinned_alloc(pages->device, bytes, &addr);
    oomph_step_back(ctx->device, state);
    if (status != OOMPH_OK)
        goto undo_limit;
    status = oomph_segment_adopt(&ctx->pool->heap, pages, OOMPH_SEGMENT_PINNED,
                                 OOMPH_TIER_HOST, addr, bytes, &segment);
    if (status != OOMPH_OK)
        goto undo_pinned;
    return OOMPH_RETRY;

undo_pinned:
    pages->driver->pinned_free(pages->device, addr);
undo_limit:
    oomph_host_limit_give(pages->host, bytes);
    if (status == OOMPH_ERR_NO_MEMORY && return_pinned(ctx, 1, bytes) == OOMPH_RETRY)
        return OOMPH_RETRY;
    return oomph_host_go_without(status);
}

// Free host pages of other holes, then, after waiting, the same.
static oomph_rung_result_t steal_host(oomph_request_context_t *ctx, size_t want)
{
    oomph_device_t *device = ctx->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST};
    oomph_survey_t survey = oomph_steal_survey(device, &reach);

    if (survey.now + survey.later < want)
        return OOMPH_NEXT;
    if (survey.now >= want)
        return oomph_steal(device, &reach, want, ctx->pool->stream) > 0 ? OOMPH_RETRY
                                                                        : OOMPH_NEXT;
    return oomph_wait_for_pages(device) ? OOMPH_RETRY : OOMPH_NEXT;
}

// Waits for host pages that an earlier step freed: they are memory that is there.
static bool wait_for_earlier(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST, .until = device->step_epoch};

    return device->step_epoch != 0 && oomph_steal_survey(device, &reach).later > 0 &&
           oomph_wait_for_pages(device);
}

static oomph_rung_result_t host_pages(oomph_request_context_t *ctx, size_t on_device,
                                      oomph_block_t **block)
{
    oomph_pages_t *pages = &ctx->device->pages;
    size_t all = oomph_round_up(ctx->bytes, pages->page_bytes) / pages->page_bytes;
    size_t count = all - on_device;
    if (on_device > 0 && !oomph_split_have_pages(ctx, on_device))
        return OOMPH_RETRY;
    const size_t *spare = &pages->tiers[OOMPH_TIER_HOST].spare_count;
    if (*spare < count) { // making a page is slower than moving one, and is more memory
        oomph_reach_t reach = {.tier = OOMPH_TIER_HOST};
        oomph_note_pressure(ctx->device); // or else nothing knows when it was freed
        oomph_steal(ctx->device, &reach, count - *spare, ctx->pool->stream);
    }
    if (*spare < count && ctx->buffer && wait_for_earlier(ctx))
        return OOMPH_RETRY;
    if (*spare < count)
        oomph_ahead_take(&ctx->device->ahead, pages, count - *spare);
    size_t have =
        oomph_pages_available(pages, OOMPH_TIER_HOST, count, OOMPH_RESERVE_WHOLE);
    if (have < count && oomph_ahead_recall(&ctx->device->ahead, pages) > 0)
        return OOMPH_RETRY;
    if (have < count)
        return steal_host(ctx, count - have);
    const oomph_block_t *hole = oomph_heap_hole(&ctx->pool->heap, all);
    if (hole == NULL) {
        oomph_status_t status = oomph_pool_extend(ctx->pool, all * pages->page_bytes);
        return status == OOMPH_OK ? OOMPH_RETRY : oomph_rung_fail(ctx, status);
    }
    if (*spare < count) {
        oomph_status_t status = oomph_make_host_pages(ctx->device, count);
        // The thread that makes pages ahead may have come first.
        bool more =
            status == OOMPH_OK || oomph_ahead_recall(&ctx->device->ahead, pages) > 0;
        return more ? OOMPH_RETRY : oomph_host_go_without(status);
    }
    if (on_device > 0)
        return oomph_split_map(ctx, hole, on_device, count, block);
    oomph_status_t status = oomph_segment_map(
        hole->segment, pages, oomph_segment_page(hole->segment, hole->addr), count,
        OOMPH_TIER_HOST);
    return status == OOMPH_OK ? OOMPH_RETRY : oomph_host_go_without(status);
}

// The limit is for all devices together: the others return what they have idle. Never
// are two of them locked at once.
static oomph_rung_result_t ask_others(oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    size_t bytes = oomph_round_up(ctx->bytes, device->pages.page_bytes), freed = 0;
    size_t want = beyond_limit(device->pages.host, bytes);

    if (ctx->asked_others)
        return OOMPH_NEXT;
    ctx->asked_others = true;
    want = want > 0 ? want : bytes; // the driver has no more
    oomph_unlock(device);
    for (int i = 0; i < OOMPH_DEVICE_MAX && freed < want; i++) {
        oomph_device_t *other = oomph_device_peek(i);
        if (other == NULL || other == device)
            continue;
        oomph_enter(other);
        freed += oomph_return_host(other, want - freed);
        oomph_unlock(other);
    }
    oomph_enter(device);
    return freed > 0 ? OOMPH_RETRY : OOMPH_NEXT;
}

// The program's blocks are the CPU's, too: a host pointer is what CUDA calls them,
// which copies between host memory, UCX, MPI and DLPack's readers take at its word.
// Buffers are seen by copies of ours alone.
static oomph_rung_result_t hand_over(oomph_request_context_t *ctx, oomph_block_t *fit,
                                     oomph_block_t **block)
{
    oomph_pages_t *pages = &ctx->device->pages;
    oomph_block_t *taken = oomph_heap_take(fit, fit->addr, ctx->bytes);
    oomph_status_t status =
        ctx->buffer ? OOMPH_OK : oomph_segment_open_to_cpu(taken, pages);

    if (status != OOMPH_OK) {
        oomph_heap_give(taken);
        return oomph_host_go_without(status);
    }
    if (ctx->pool->group != NULL && !ctx->prepared)
        oomph_segment_capture(taken);
    *block = taken;
    return OOMPH_RETRY;
}

// Whether it may have host memory that a graph has ready (capture.c): it is there, so
// that it may be had within a capture, too.
static bool may_have_ready(const oomph_request_context_t *ctx)
{
    return ctx->pool->group != NULL && !oomph_process.config.strict &&
           oomph_host_ban(ctx) == NULL;
}

// What fits of it, for small blocks and others.
static oomph_block_t *fit_ready(const oomph_request_context_t *ctx)
{
    const oomph_pool_t *own = ctx->pool;
    oomph_block_t *block = NULL;

    if (oomph_slab_reserve(&ctx->device->slab, 2) != OOMPH_OK)
        return NULL;
    for (const oomph_pool_t *pool = ctx->device->pools; pool != NULL && block == NULL;
         pool = pool->next)
        if (pool->group == own->group && pool->stream == own->stream)
            block = oomph_heap_fit_host(&pool->heap, ctx->bytes);
    return block;
}

// The same for a stream that joins the capture: pages that no stream of the graph has
// used come to the stream's own pool.
static oomph_block_t *bring_ready(const oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    oomph_pages_t *pages = &device->pages;
    oomph_heap_t *heap = &ctx->pool->heap;
    oomph_reach_t reach = {.tier = OOMPH_TIER_HOST, .group = ctx->pool->group};
    size_t count = oomph_round_up(ctx->bytes, pages->page_bytes) / pages->page_bytes;

    if (!oomph_host_captures(&device->streams) ||
        oomph_steal_survey(device, &reach).now < count ||
        oomph_steal(device, &reach, count, NULL) < count)
        return NULL;
    const oomph_block_t *hole = oomph_heap_hole(heap, count);
    if (hole == NULL &&
        oomph_pool_extend(ctx->pool, count * pages->page_bytes) == OOMPH_OK)
        hole = oomph_heap_hole(heap, count);
    if (hole == NULL ||
        oomph_segment_map(hole->segment, pages,
                          oomph_segment_page(hole->segment, hole->addr), count,
                          OOMPH_TIER_HOST) != OOMPH_OK ||
        oomph_slab_reserve(&device->slab, 2) != OOMPH_OK)
        return NULL; // the pages are spare
    return oomph_heap_fit_host(heap, ctx->bytes);
}

oomph_rung_result_t oomph_rung_host(oomph_request_context_t *ctx, oomph_block_t **block)
{
    oomph_device_t *device = ctx->device;
    oomph_rung_result_t result = OOMPH_RETRY;

    oomph_host_begin();
    bool may = may_have_ready(ctx);
    oomph_block_t *ready = may ? fit_ready(ctx) : NULL;
    if (may && ready == NULL)
        ready = bring_ready(ctx);
    if (ready != NULL)
        return hand_over(ctx, ready, block);
    while (result == OOMPH_RETRY && *block == NULL) {
        ctx->host_ban =
            oomph_host_ban_now(ctx); // each time: the lock may have been given up
        if (ctx->host_ban != NULL)
            return OOMPH_NEXT;
        oomph_host_kind_t kind = oomph_device_host_kind(device);
        if (kind == OOMPH_HOST_OFF ||
            (oomph_process.config.strict && !ctx->host_expected))
            return OOMPH_NEXT;
        size_t on_device = oomph_split_pages(ctx);
        oomph_block_t *fit =
            on_device > 0 ? NULL : oomph_heap_fit_host(&ctx->pool->heap, ctx->bytes);
        if (fit != NULL && oomph_slab_reserve(&device->slab, 2) == OOMPH_OK)
            return hand_over(ctx, fit, block);
        result = kind == OOMPH_HOST_PINNED ? pinned_block(ctx)
                                           : host_pages(ctx, on_device, block);
        if (result == OOMPH_NEXT)
            result = ask_others(ctx);
    }
    return result;
}
