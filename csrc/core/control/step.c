/* step.c - what is done when a step ends.
 *
 * The order matters: the layout is judged by the pages that the step moved; peaks are
 * taken before blocks return to the device, which must fit beside them; host memory is
 * given back after that, then what the reserve lacks, and what is left empty goes last.
 * It costs a walk over the pools of each open device, over blocks where some are on the
 * host, and a driver call for the reserve. The GPU is waited for only where blocks
 * return, a layout is built, or the reserve is short.
 */
#include "core/alloc/demand.h"
#include "core/alloc/free.h"
#include "core/alloc/trim.h"
#include "core/control/host_use.h"
#include "core/control/promote.h"
#include "core/device/arena.h"
#include "core/device/pool.h"

enum { RELIEF_STEPS = 4 }; // steps without shortage until frees are no longer stamped

static void lay_out_next_step(oomph_device_t *device)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next) {
        oomph_layout_t *layout = &pool->layout;
        if (pool->small || pool->group != NULL)
            continue;
        oomph_layout_note_moved(layout, (size_t)device->stats.step_remapped_bytes);
        // Somebody settled down in the arena: pack again, elsewhere.
        if (layout->places != NULL && pool->conflicts > layout->place_count / 16)
            oomph_layout_drop(layout);
        pool->conflicts = 0;
        oomph_layout_mark(layout);
        if (!device->under_pressure)
            layout->record.found_period = 0; // there is room enough without a layout
        if (layout->record.found_period != 0 ||
            (layout->places == NULL && pool->arena.segments != NULL))
            oomph_arena_rebuild(pool);
    }
}

// Returns host pages once a step has done without; then stops stamping frees.
static void relax(oomph_device_t *device)
{
    oomph_stats_t *stats = &device->stats;
    oomph_reach_t host = {.tier = OOMPH_TIER_HOST};
    int64_t buffers = device->step_buffers;

    device->step_buffers = 0;
    if (!device->under_pressure)
        return;
    oomph_streams_catch_up(&device->streams);
    oomph_end_aliases(device);
    device->step_epoch = device->streams.clock.open - 1;
    oomph_return_idle_host(device);
    if (stats->step_rescues > 0 || buffers > 0)
        return;
    oomph_ahead_drop(&device->ahead);
    oomph_release_passed(device, &host, SIZE_MAX / 2);
    oomph_return_adopted(device);
    if (stats->step_count - device->pressure_step >= RELIEF_STEPS)
        device->under_pressure = false;
}

// Libraries allocate for themselves: what the reserve lacks is returned to the driver.
// Where the program would fail without it, only what the step did not need is: the next
// step would take the rest again.
static void keep_reserve(oomph_device_t *device, size_t device_high)
{
    size_t free_bytes, total_bytes, reserve = device->pages.reserve_bytes;
    size_t held = oomph_pages_bytes(&device->pages, OOMPH_TIER_DEVICE);
    size_t idle = held - oomph_min(held, device_high);

    if (reserve == 0 || oomph_process.driver->memory_info(device->ordinal, &free_bytes,
                                                          &total_bytes) != OOMPH_OK)
        return;
    device->pages.known_free_bytes = free_bytes;
    device->pages.unchecked_bytes = 0;
    size_t lacking = reserve - oomph_min(reserve, free_bytes);
    device->needs_reserve = device->needs_reserve && idle < lacking;
    if (device->needs_reserve)
        lacking = idle;
    if (lacking > 0)
        oomph_return_device(device, lacking);
}

static void end_step(oomph_device_t *device)
{
    oomph_stats_t *stats = &device->stats;
    int64_t remapped = stats->pages_remapped * (int64_t)device->pages.page_bytes;

    stats->step_remapped_bytes = remapped - device->step_start_remapped;
    stats->step_rescues = stats->rescues - device->step_start_rescues;
    oomph_host_prediction_end_step(&device->host_prediction);
    stats->rescues_of[stats->step_count++ % OOMPH_STEPS_KEPT] = stats->step_rescues;
    device->step_start_remapped = remapped;
    device->step_start_rescues = stats->rescues;
    if (oomph_process.config.plan)
        lay_out_next_step(device);
    oomph_tier_usage_t taken =
        oomph_tier_usage_take(&device->active_usage, &device->counters.active_bytes);
    stats->step_active_bytes_peak = taken.high;
    oomph_demand_end_step(device, taken.high);
    oomph_host_use_end_step(device);
    oomph_promote_survivors(device, taken.device_high);
    relax(device);
    keep_reserve(device, (size_t)taken.device_high);
    device->streams.tick++;
    oomph_pools_prune(device);
}

uint64_t oomph_step(void)
{
    uint64_t rescued = 0;

    for (int i = 0; i < OOMPH_DEVICE_MAX; i++) {
        oomph_device_t *device = oomph_enter_open(i);
        if (device == NULL)
            continue;
        end_step(device);
        rescued |= (uint64_t)(device->stats.step_rescues > 0) << i;
        oomph_unlock(device);
    }
    return rescued;
}
