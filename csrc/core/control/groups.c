/* groups.c - pools as PyTorch knows them (oomph/pool.h): it begins and ends those of
 * graphs and MemPools, and has what is free in them given back.
 */
#include "core/alloc/free.h"
#include "core/alloc/trim.h"
#include "core/control/capture.h"
#include "core/control/ipc.h"

// Enters the device and finds the group, made if need be. If that fails, nothing is
// locked.
static oomph_status_t enter_group(int ordinal, oomph_pool_id_t id,
                                  oomph_device_t **device, oomph_group_t **group)
{
    oomph_status_t status = oomph_enter_device(ordinal, device);
    if (status != OOMPH_OK)
        return status;
    status = oomph_group_get(*device, id, group);
    if (status != OOMPH_OK)
        oomph_unlock(*device);
    return status;
}

oomph_status_t oomph_pool_retain(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = enter_group(ordinal, id, &device, &group);
    if (status != OOMPH_OK)
        return status;
    group->use_count++;
    group->is_mem_pool = true;
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_pool_begin(int ordinal, oomph_pool_id_t id, oomph_stream_t stream,
                                bool stream_lives)
{
    oomph_device_t *device;
    oomph_group_t *group;
    oomph_stream_state_t *captures;
    oomph_request_t request = {
        .device = ordinal, .pool = id, .stream = stream, .stream_lives = stream_lives};

    oomph_status_t status = enter_group(ordinal, id, &device, &group);
    if (status != OOMPH_OK)
        return status;
    group->use_count++; // so that it stays while the lock is given up
    oomph_capture_prepare(device, &request);
    status =
        oomph_stream_get(&device->streams, ordinal, stream, stream_lives, &captures);
    if (status == OOMPH_OK) {
        oomph_streams_catch_up(&device->streams); // no epoch is closed in a capture
        oomph_streams_begin(&device->streams, captures);
    } else {
        group->use_count--;
    }
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_end(int ordinal, oomph_stream_t stream, bool stream_lives)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    oomph_stream_state_t *captured;

    if (device == NULL)
        return oomph_not_open(ordinal);
    oomph_streams_end(&device->streams);
    // Looks whether it captures still.
    oomph_status_t status =
        oomph_stream_get(&device->streams, ordinal, stream, stream_lives, &captured);
    oomph_unlock(device);
    return status;
}

// What a graph or a MemPool held may be in use by replays that run on any stream.
static void let_float(oomph_device_t *device, const oomph_group_t *group)
{
    for (oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
        if (pool->group == group)
            pool->floor = oomph_streams_stamp(&device->streams, 0);
}

oomph_status_t oomph_pool_release(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    oomph_status_t status = OOMPH_OK;

    if (device == NULL)
        return oomph_not_open(ordinal);
    oomph_group_t *group = oomph_group_find(device, id);
    if (group == NULL || group->use_count == 0)
        status = oomph_fail(OOMPH_ERR_INVALID, "the pool is not in use");
    else if (--group->use_count == 0)
        let_float(device, group);
    oomph_unlock(device);
    return status;
}

int oomph_pool_use_count(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device = oomph_enter_open(ordinal);
    int count = 0;

    if (device == NULL)
        return 0;
    const oomph_group_t *group = oomph_group_find(device, id);
    if (group != NULL)
        count = group->use_count;
    oomph_unlock(device);
    return count;
}

oomph_status_t oomph_pool_set_flag(int ordinal, oomph_pool_id_t id,
                                   oomph_pool_flag_t flag, bool on)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = enter_group(ordinal, id, &device, &group);
    if (status != OOMPH_OK)
        return status;
    group->flags = on ? group->flags | flag : group->flags & ~(unsigned)flag;
    for (oomph_pool_t *p = device->pools; p != NULL; p = p->next)
        if (p->group == group)
            p->heap.whole = (group->flags & OOMPH_POOL_NO_SPLIT) != 0;
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_pool_set_source(int ordinal, oomph_pool_id_t id,
                                     const oomph_source_t *source)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = enter_group(ordinal, id, &device, &group);
    if (status != OOMPH_OK)
        return status;
    group->source = *source;
    group->has_source = source->take != NULL;
    oomph_unlock(device);
    return OOMPH_OK;
}

bool oomph_captures(int ordinal)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return false;
    bool captures = oomph_streams_capture(&device->streams);
    oomph_unlock(device);
    return captures;
}

/* ---- What pools give back */

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
