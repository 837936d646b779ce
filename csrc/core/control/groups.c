/* groups.c - the memory of graphs and MemPools, as PyTorch begins and ends it. */
#include "core/alloc/free.h"
#include "core/control/capture.h"

// The caller holds the lock.
static oomph_status_t retain(oomph_device_t *device, oomph_pool_id_t id,
                             bool is_mem_pool)
{
    oomph_group_t *group;

    oomph_status_t status = oomph_group_get(device, id, &group);
    if (status == OOMPH_OK)
        group->use_count++;
    if (status == OOMPH_OK && is_mem_pool)
        group->is_mem_pool = true;
    return status;
}

oomph_status_t oomph_pool_retain(int ordinal, oomph_pool_id_t id)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = retain(device, id, true);
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_begin(int ordinal, oomph_pool_id_t id, oomph_stream_t stream,
                                bool stream_lives)
{
    oomph_device_t *device;
    oomph_stream_state_t *captures;
    oomph_request_t request = {
        .device = ordinal, .pool = id, .stream = stream, .stream_lives = stream_lives};

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = retain(device, id, false);
    if (status == OOMPH_OK) {
        oomph_capture_prepare(device, &request);
        status = oomph_stream_get(&device->streams, ordinal, stream, stream_lives,
                                  &captures);
        if (status != OOMPH_OK)
            oomph_group_find(device, id)->use_count--;
    }
    if (status == OOMPH_OK) {
        oomph_streams_catch_up(&device->streams); // no epoch is closed in a capture
        oomph_streams_begin(&device->streams, captures);
    }
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_end(int ordinal, oomph_stream_t stream, bool stream_lives)
{
    oomph_device_t *device = oomph_device_peek(ordinal);
    oomph_stream_state_t *captured;

    if (device == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
    oomph_enter(device);
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
    oomph_device_t *device = oomph_device_peek(ordinal);
    oomph_status_t status = OOMPH_OK;

    if (device == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
    oomph_enter(device);
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
    oomph_device_t *device = oomph_device_peek(ordinal);
    int count = 0;

    if (device == NULL)
        return 0;
    oomph_enter(device);
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

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = oomph_group_get(device, id, &group);
    if (status == OOMPH_OK)
        group->flags = on ? group->flags | flag : group->flags & ~(unsigned)flag;
    for (oomph_pool_t *p = device->pools; p != NULL && status == OOMPH_OK; p = p->next)
        if (p->group == group)
            p->heap.whole = (group->flags & OOMPH_POOL_NO_SPLIT) != 0;
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_pool_set_source(int ordinal, oomph_pool_id_t id,
                                     const oomph_source_t *source)
{
    oomph_device_t *device;
    oomph_group_t *group;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = oomph_group_get(device, id, &group);
    if (status == OOMPH_OK) {
        group->source = *source;
        group->has_source = source->take != NULL;
    }
    oomph_unlock(device);
    return status;
}
