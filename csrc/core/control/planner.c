/* planner.c - what the embedder's planner of transfers asks of the core.
 *
 * Each is a driver call or two, but for these that cost one for each stream: where all
 * are to wait, one event is recorded, and the streams wait for it on the GPU, so that
 * no thread has to; and before an event is asked, all streams are: while one captures,
 * the event counts as not passed.
 */
#include "core/alloc/free.h"

oomph_status_t oomph_predict_host(int ordinal, size_t min_bytes, size_t part_bytes)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    device->host_prediction.min_bytes = min_bytes;
    device->host_prediction.part_bytes = part_bytes;
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_copy(int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
                          oomph_stream_t stream)
{
    oomph_device_t *found;

    oomph_status_t status = oomph_device_get(device, &found);
    return status == OOMPH_OK
               ? oomph_process.driver->copy(device, to, from, bytes, stream)
               : status;
}

static oomph_status_t have_all_wait(const oomph_streams_t *streams,
                                    oomph_stream_t stream, oomph_event_t event)
{
    const oomph_driver_t *driver = streams->driver;
    oomph_status_t status = driver->event_record(streams->device, event, stream);

    for (const oomph_stream_state_t *s = streams->list; s != NULL && status == OOMPH_OK;
         s = s->next)
        if (s->lives && s->handle != stream && !oomph_stream_captures(streams, s))
            status = driver->stream_wait(s->device, s->handle, event);
    return status;
}

oomph_status_t oomph_all_wait(int ordinal, oomph_stream_t stream)
{
    const oomph_driver_t *driver;
    oomph_device_t *device;
    oomph_event_t event;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    driver = oomph_process.driver;
    status = driver->event_create(ordinal, &event);
    if (status == OOMPH_OK) {
        status = have_all_wait(&device->streams, stream, event);
        driver->event_destroy(ordinal, event);
    }
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_event_passed(int device, oomph_event_t event, bool *passed)
{
    oomph_device_t *found;

    oomph_status_t status = oomph_device_get(device, &found);
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++)
        if (oomph_captures(i)) {
            *passed = false;
            return status;
        }
    return status == OOMPH_OK
               ? oomph_process.driver->event_passed(device, event, passed)
               : status;
}

oomph_status_t oomph_read_usage(int ordinal, oomph_usage_t *usage)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    oomph_counter_t *allocated = &device->counters.allocated_bytes;
    oomph_tier_usage_t taken =
        oomph_tier_usage_take(&device->allocated_usage, allocated);
    *usage = (oomph_usage_t){.now = (size_t)oomph_counter_current(allocated),
                             .high = (size_t)taken.high,
                             .host = (size_t)taken.host,
                             .host_high = (size_t)taken.host_high,
                             .device_high = (size_t)taken.device_high,
                             .device_bytes = oomph_device_room(device)};
    oomph_unlock(device);
    return OOMPH_OK;
}
