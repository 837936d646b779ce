/* planner.c - what the embedder's planner of transfers asks of the core.
 *
 * Each is a driver call or two, but for these that cost one for each stream: where all
 * are to wait, one event is recorded, and the streams wait for it on the GPU, so that
 * no thread has to; and before an event is asked, all streams are: while one captures,
 * the event counts as not passed.
 */
#include "core/alloc/free.h"

oomph_status_t oomph_predict_host(int ordinal, size_t min_bytes)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    device->host_prediction.min_bytes = min_bytes;
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

bool oomph_captures(int ordinal)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return false;
    bool captures = oomph_streams_capture(&device->streams);
    oomph_unlock(device);
    return captures;
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

oomph_status_t oomph_know_stream(int ordinal, oomph_stream_t stream, bool lives)
{
    oomph_device_t *device;
    oomph_stream_state_t *known;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = oomph_stream_get(&device->streams, ordinal, stream, lives, &known);
    oomph_unlock(device);
    return status;
}
