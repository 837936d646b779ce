/* split.c - blocks that begin on device pages and end on host pages.
 *
 * A block of 3 GiB that lacks 100 MiB would be slow as a whole if it went to the host.
 * So it gets what device pages there are, and host pages for the rest, behind them:
 * whoever looks at its address alone takes it for device memory, and each part of it
 * that begins on the host is the CPU's, too. It costs a wait for what runs, since each
 * page that comes free is worth it, and one map for each page.
 *
 * A driver may copy no range that crosses the border: then none is split (spill.c).
 */
#include "core/alloc/split.h"
#include "core/alloc/host_refusal.h"
#include "core/device/steal.h"
#include "core/device/sync.h"
#include "core/memory/access.h"

enum {
    LEAST_SPLIT = 8, // pages of a block that is split, and of each part of it
    LEAST_PART = 2,
    LEAVES_DIVISOR = 128, // part of the device that is left for others,
    LEAVES_DOUBLED = 6,   // and how often that doubles
};

bool oomph_splits(const oomph_request_context_t *ctx)
{
    const oomph_pages_t *pages = &ctx->device->pages;

    return pages->splits && !ctx->whole && !ctx->buffer && !ctx->pool->small &&
           ctx->pool->group == NULL && oomph_process.config.guard == OOMPH_GUARD_OFF &&
           ctx->bytes > (LEAST_SPLIT - 1) * pages->page_bytes;
}

static size_t available(const oomph_request_context_t *ctx, size_t count)
{
    return oomph_pages_available(&ctx->device->pages, OOMPH_TIER_DEVICE, count,
                                 oomph_kept_reserve(ctx));
}

// What a split block has on the host at least: room for those that come after it, of
// which each would use what is missing again. With each rescue in a step, twice as
// much; of a predicted block it is known how much.
static size_t least_on_host(const oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    size_t page_bytes = device->pages.page_bytes;
    size_t rescues = (size_t)(device->stats.rescues - device->step_start_rescues);
    size_t bytes = (oomph_device_room(device) / LEAVES_DIVISOR)
                   << oomph_min(rescues, LEAVES_DOUBLED);

    if (ctx->host_expected)
        bytes = oomph_max(bytes, device->host_prediction.part_bytes);
    return oomph_max(oomph_round_up(bytes, page_bytes) / page_bytes, LEAST_PART);
}

size_t oomph_split_pages(const oomph_request_context_t *ctx)
{
    size_t page_bytes = ctx->device->pages.page_bytes;
    size_t count = oomph_round_up(ctx->bytes, page_bytes) / page_bytes;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    oomph_survey_t survey;

    if (!oomph_splits(ctx))
        return 0;
    do
        survey = oomph_steal_survey(ctx->device, &reach);
    while (survey.later > 0 && oomph_wait_for_pages(ctx->device));
    size_t have = survey.now + available(ctx, count);
    size_t on_host = oomph_max(count - oomph_min(have, count), least_on_host(ctx));
    return on_host + LEAST_PART <= count ? count - on_host : 0;
}

oomph_rung_result_t oomph_split_map(oomph_request_context_t *ctx,
                                    const oomph_block_t *hole, size_t on_device,
                                    size_t on_host, oomph_block_t **block)
{
    oomph_pages_t *pages = &ctx->device->pages;
    oomph_segment_t *segment = hole->segment;
    size_t first = oomph_segment_page(segment, hole->addr);

    if (available(ctx, on_device) < on_device)
        return OOMPH_RETRY; // another thread has had them
    oomph_status_t status =
        oomph_segment_map(segment, pages, first, on_device, OOMPH_TIER_DEVICE);
    if (status != OOMPH_OK) {
        ctx->whole = true; // the driver has fewer than it says
        return OOMPH_RETRY;
    }
    status =
        oomph_segment_map(segment, pages, first + on_device, on_host, OOMPH_TIER_HOST);
    if (status == OOMPH_OK)
        status = oomph_slab_reserve(&ctx->device->slab, 5);
    if (status != OOMPH_OK)
        return oomph_host_go_without(status);
    oomph_addr_t addr = oomph_segment_addr(segment, first);
    oomph_block_t *taken =
        oomph_heap_take_split(oomph_segment_block(segment, addr), addr, ctx->bytes);
    status = oomph_segment_open_to_cpu(taken, pages);
    if (status != OOMPH_OK) {
        oomph_heap_give(taken);
        return oomph_host_go_without(status);
    }
    *block = taken;
    return OOMPH_RETRY;
}

bool oomph_split_have_pages(oomph_request_context_t *ctx, size_t count)
{
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    size_t have = available(ctx, count);

    if (have >= count)
        return true;
    ctx->whole = oomph_steal(ctx->device, &reach, count - have, ctx->pool->stream) == 0;
    return false;
}
