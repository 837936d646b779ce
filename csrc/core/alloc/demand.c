/* demand.c - what steps need, as captures want to know it.
 *
 * What a capture will need is unknown, but it is part of a step. So it is estimated
 * from the last steps: how much each grew from its beginning to its peak, with a margin
 * for copies of inputs and pages that are not full. Where memory is or was short, the
 * margin is larger: too little would be an error, too much is only slow.
 */
#include "core/alloc/demand.h"

enum {
    MARGIN_DIVISOR = 4,          // a quarter more than steps have needed so far,
    MARGIN_DIVISOR_IF_SHORT = 2, // or half as much more
    RECENT_STEPS = 16, // after which captures are taken to be over, and what steps
                       // needed is forgotten, once twice as many have passed
};

static int64_t active_bytes(const oomph_device_t *device)
{
    return oomph_counter_current(&device->counters.active_bytes);
}

static int64_t high_bytes(oomph_device_t *device)
{
    oomph_tier_usage_move(&device->active_usage, &device->counters.active_bytes, 0);
    return device->active_usage.high;
}

void oomph_demand_note(const oomph_request_context_t *ctx, oomph_block_t *block)
{
    oomph_demand_t *demand = &ctx->device->demand;
    oomph_stream_state_t *stream = ctx->pool->stream;
    oomph_group_t *group = ctx->pool->group;

    demand->recent.was_short |= block == NULL || ctx->rescued > 0;
    demand->recent.largest_bytes = oomph_max(demand->recent.largest_bytes, ctx->bytes);
    if (group != NULL)
        group->largest_bytes = oomph_max(group->largest_bytes, ctx->bytes);
    if (block == NULL || !ctx->request->may_use_reserve)
        return;
    block->workspace = true;
    stream->workspace_bytes += block->bytes;
    stream->workspace_peak = oomph_max(stream->workspace_peak, stream->workspace_bytes);
    demand->workspace_peak = oomph_max(demand->workspace_peak, stream->workspace_peak);
}

void oomph_demand_end_step(oomph_device_t *device, int64_t high)
{
    oomph_demand_t *demand = &device->demand;

    if (device->stats.step_count % RECENT_STEPS == 0) {
        demand->earlier = demand->recent;
        demand->recent = (oomph_needs_t){0};
    }
    // Nobody knows what the first step found at its beginning.
    if (demand->base_is_known)
        demand->recent.growth =
            oomph_larger(demand->recent.growth, high - demand->base);
    demand->base = active_bytes(device);
    demand->base_is_known = true;
    demand->base_is_begin = false;
}

void oomph_demand_begin(oomph_device_t *device)
{
    oomph_demand_t *demand = &device->demand;

    demand->captured_step = device->stats.step_count;
    demand->captured = true;
    if (demand->base_is_begin)
        return;
    demand->base = active_bytes(device);
    demand->base_is_known = demand->base_is_begin = true;
}

size_t oomph_demand_largest(const oomph_device_t *device)
{
    return oomph_max(device->demand.recent.largest_bytes,
                     device->demand.earlier.largest_bytes);
}

bool oomph_demand_was_short(const oomph_device_t *device)
{
    return device->demand.recent.was_short || device->demand.earlier.was_short;
}

int64_t oomph_demand_expected(oomph_device_t *device)
{
    const oomph_demand_t *demand = &device->demand;
    int64_t growth =
        oomph_larger(oomph_larger(demand->recent.growth, demand->earlier.growth),
                     high_bytes(device) - demand->base);

    return demand->base + growth +
           growth / (oomph_demand_was_short(device) ? MARGIN_DIVISOR_IF_SHORT
                                                    : MARGIN_DIVISOR);
}

// Free bytes on the device in pieces of fewer than `below`.
static size_t free_bytes(const oomph_pool_t *pool, size_t below)
{
    size_t bytes = 0;

    for (const oomph_segment_t *s = pool->heap.segments; s != NULL; s = s->next)
        for (const oomph_block_t *b = s->first; b != NULL; b = b->next)
            if (b->state == OOMPH_BLOCK_FREE && b->tier == OOMPH_TIER_DEVICE &&
                b->bytes < below)
                bytes += b->bytes;
    return bytes;
}

size_t oomph_demand_locked(const oomph_device_t *device, const oomph_group_t *group)
{
    size_t bytes = 0;

    for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        bool own = group != NULL && pool->group == group;
        if (own && oomph_demand_was_short(device))
            bytes += free_bytes(pool, pool->small ? 0 : group->largest_bytes);
        if (!own && !oomph_pool_floats(pool))
            bytes += free_bytes(pool, SIZE_MAX);
    }
    return bytes;
}

size_t oomph_demand_kept(oomph_device_t *device, int64_t device_peak)
{
    const oomph_demand_t *demand = &device->demand;
    bool captures_go_on =
        demand->captured &&
        device->stats.step_count - demand->captured_step < RECENT_STEPS;
    int64_t peak = device_peak;

    if (captures_go_on)
        peak = oomph_larger(peak,
                            oomph_demand_expected(device) - device->active_usage.host);
    return (size_t)peak + oomph_demand_locked(device, NULL);
}
