/* cache.c - what is idle goes back to the driver when the program asks. */
#include "core/alloc/free.h"
#include "core/alloc/trim.h"
#include "core/control/ipc.h"

oomph_status_t oomph_empty_cache(int ordinal, oomph_pool_id_t id, size_t *freed_bytes)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    size_t freed = 0;

    if (device == NULL) {
        *freed_bytes = 0;
        return OOMPH_OK; // never used: nothing is cached
    }
    int64_t start = oomph_now_ns();
    bool all = oomph_is_default_pool(id);
    oomph_reach_t reach = {.group = all ? NULL : oomph_group_find(device, id)};
    bool was_under_pressure = device->under_pressure;
    int64_t syncs = device->stats.sync_count;
    oomph_note_pressure(device);
    oomph_wait_for(device, NULL); // while a stream captures: only what has passed
    if (oomph_collect(device))
        oomph_wait_for(device, NULL); // these blocks count as freed just now
    if (device->stats.sync_count > syncs)
        device->stats.sync_count = syncs + 1; // PyTorch counts such a call once
    if (all || reach.group != NULL)
        for (int tier = 0; tier < OOMPH_TIERS; tier++) {
            reach.tier = (oomph_tier_t)tier;
            freed += oomph_release_passed(device, &reach, SIZE_MAX / 2);
        }
    freed += oomph_return_adopted(device);
    oomph_imports_release(device);
    device->under_pressure = was_under_pressure;
    oomph_pools_prune(device);
    device->stats.driver_ns += oomph_now_ns() - start;
    oomph_unlock(device);
    *freed_bytes = freed;
    return OOMPH_OK;
}
