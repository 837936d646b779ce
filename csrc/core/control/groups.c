/* groups.c - the memory of graphs and MemPools, as PyTorch begins and ends it. */
#include "core/alloc/free.h"
#include "core/control/capture.h"

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
