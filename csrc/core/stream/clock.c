/* clock.c - epochs as a ring of events.
 *
 * Closing an epoch records one event, polling looks at the oldest event of the ring,
 * and waiting waits for it, or for all work of the device where there is none. So each
 * costs one driver call, however many frees an epoch has. The ring has 32 places; while
 * it is full the open epoch stays open, and later frees join it.
 */
#include "core/stream/clock.h"
#include "core/stream/capture.h"

/* ---- Events */

static int device_of(const oomph_streams_t *streams, const oomph_clock_t *clock)
{
    return clock->stream != NULL ? clock->stream->device : streams->device;
}

// Those of our device are kept for reuse.
static bool event_take(oomph_streams_t *streams, int device, oomph_event_t *event)
{
    if (device == streams->device && streams->spare_count > 0) {
        *event = streams->spare[--streams->spare_count];
        return true;
    }
    return streams->driver->event_create(device, event) == OOMPH_OK;
}

static void event_give(oomph_streams_t *streams, int device, oomph_event_t event)
{
    if (device == streams->device && streams->spare_count < OOMPH_EPOCH_RING)
        streams->spare[streams->spare_count++] = event;
    else
        streams->driver->event_destroy(device, event);
}

// Has the joint stream wait for what one has been given so far.
static oomph_status_t join(const oomph_streams_t *streams, oomph_event_t event,
                           oomph_stream_t stream)
{
    const oomph_driver_t *driver = streams->driver;

    oomph_status_t status = driver->event_record(streams->device, event, stream);
    return status == OOMPH_OK
               ? driver->stream_wait(streams->device, streams->joint, event)
               : status;
}

// Records what all known streams have been given so far, where the driver does not do
// so by itself. The default stream stands for all that it waits for, known or not. Not
// possible with a stream that may be gone.
static oomph_status_t record_joint(oomph_streams_t *streams, oomph_event_t event)
{
    oomph_status_t status = OOMPH_OK;
    bool stray = streams->strays;

    for (const oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        stray |= s->device == streams->device && !s->lives;
    if (stray)
        return oomph_fail(OOMPH_ERR_STATE, "a stream may be gone");
    if (streams->joint == NULL)
        status = streams->driver->stream_create(streams->device, &streams->joint);
    if (status == OOMPH_OK)
        status = join(streams, event, NULL);
    for (const oomph_stream_state_t *s = streams->list; s != NULL && status == OOMPH_OK;
         s = s->next)
        if (s->device == streams->device && s->handle != NULL)
            status = join(streams, event, s->handle);
    return status == OOMPH_OK
               ? streams->driver->event_record(streams->device, event, streams->joint)
               : status;
}

static oomph_status_t record(oomph_streams_t *streams, const oomph_clock_t *clock,
                             oomph_event_t event)
{
    const oomph_driver_t *driver = streams->driver;

    if (clock->stream != NULL)
        return driver->event_record(clock->stream->device, event,
                                    clock->stream->handle);
    oomph_status_t status = driver->event_record_all(streams->device, event);
    return status == OOMPH_ERR_STATE ? record_joint(streams, event) : status;
}

/* ---- Epochs */

static bool may_record(oomph_streams_t *streams, const oomph_clock_t *clock, bool there)
{
    if (clock->stream == NULL)
        return !oomph_streams_capture(streams);
    return (clock->stream->lives || there) &&
           !oomph_stream_captures(streams, clock->stream);
}

void oomph_clock_close(oomph_streams_t *streams, oomph_clock_t *clock, bool there)
{
    int device = device_of(streams, clock);
    oomph_event_t event;

    if (clock->count == OOMPH_EPOCH_RING || !may_record(streams, clock, there) ||
        !event_take(streams, device, &event))
        return;
    if (record(streams, clock, event) != OOMPH_OK) {
        event_give(streams, device, event);
        return;
    }
    unsigned last = (clock->first + clock->count) % OOMPH_EPOCH_RING;
    clock->ring[last].epoch = clock->open;
    clock->ring[last].event = event;
    clock->count++;
    clock->open++;
    if (clock->stream == NULL) {
        streams->stamped = false;
        streams->freed_bytes = 0;
    }
}

static void pop(oomph_streams_t *streams, oomph_clock_t *clock)
{
    uint64_t epoch = clock->ring[clock->first].epoch;

    if (epoch > clock->passed)
        clock->passed = epoch;
    event_give(streams, device_of(streams, clock), clock->ring[clock->first].event);
    clock->first = (clock->first + 1) % OOMPH_EPOCH_RING;
    clock->count--;
}

bool oomph_clock_poll(oomph_streams_t *streams, oomph_clock_t *clock)
{
    uint64_t before = clock->passed;
    bool passed = true;

    while (clock->count > 0 && !clock->waited_for && passed) {
        if (streams->driver->event_passed(device_of(streams, clock),
                                          clock->ring[clock->first].event,
                                          &passed) != OOMPH_OK)
            break;
        if (passed)
            pop(streams, clock);
    }
    return clock->passed > before;
}

bool oomph_clock_have_wait(oomph_streams_t *streams, oomph_clock_t *clock,
                           uint64_t epoch, const oomph_stream_state_t *stream)
{
    unsigned i = 0;

    if (epoch >= clock->open)
        oomph_clock_close(streams, clock, false);
    if (epoch <= clock->passed)
        return true;
    while (i < clock->count &&
           clock->ring[(clock->first + i) % OOMPH_EPOCH_RING].epoch < epoch)
        i++;
    if (i == clock->count || oomph_stream_captures(streams, stream))
        return false;
    oomph_event_t event = clock->ring[(clock->first + i) % OOMPH_EPOCH_RING].event;
    return streams->driver->stream_wait(stream->device, stream->handle, event) ==
           OOMPH_OK;
}

void oomph_streams_catch_up(oomph_streams_t *streams)
{
    oomph_clock_poll(streams, &streams->clock); // makes room for one more epoch
    if (streams->stamped)
        oomph_clock_close(streams, &streams->clock, false);
    oomph_clock_poll(streams, &streams->clock);
}

static bool is_awaited(const oomph_streams_t *streams, const oomph_clock_t *clock)
{
    return clock->wanted > clock->passed &&
           !oomph_stream_captures(streams, clock->stream);
}

oomph_clock_t *oomph_streams_awaited(oomph_streams_t *streams)
{
    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        if (is_awaited(streams, &s->clock))
            return &s->clock;
    return NULL;
}

/* ---- Waiting */

// What is freed from now on belongs to an epoch that the drain does not cover.
static bool drain_begin(oomph_streams_t *streams, int device, oomph_wait_t *wait)
{
    if (oomph_streams_capture(streams))
        return false;
    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        if (s->device == device)
            s->clock.draining = s->clock.open++;
    if (device == streams->device)
        streams->clock.draining = streams->clock.open++;
    *wait = (oomph_wait_t){.device = device};
    return true;
}

bool oomph_streams_drain_begin(oomph_streams_t *streams, oomph_wait_t *wait)
{
    return drain_begin(streams, streams->device, wait);
}

bool oomph_clock_wait_begin(oomph_streams_t *streams, oomph_clock_t *clock,
                            oomph_wait_t *wait)
{
    int device = device_of(streams, clock);

    if (clock->count == 0)
        oomph_clock_close(streams, clock, false);
    if (clock->count == 0)
        return drain_begin(streams, device, wait);
    if (clock->waited_for)
        return false;
    clock->waited_for = true;
    *wait = (oomph_wait_t){clock, device, clock->ring[clock->first].event};
    return true;
}

oomph_status_t oomph_clock_wait(const oomph_streams_t *streams,
                                const oomph_wait_t *wait)
{
    return wait->clock != NULL ? streams->driver->event_wait(wait->device, wait->event)
                               : streams->driver->drain(wait->device);
}

static void drained(oomph_streams_t *streams, oomph_clock_t *clock)
{
    if (clock->draining > clock->passed)
        clock->passed = clock->draining;
    clock->draining = 0;
    while (clock->count > 0 && !clock->waited_for &&
           clock->ring[clock->first].epoch <= clock->passed)
        pop(streams, clock);
}

void oomph_clock_wait_end(oomph_streams_t *streams, const oomph_wait_t *wait,
                          oomph_status_t waited)
{
    if (wait->clock != NULL)
        wait->clock->waited_for = false;
    if (waited != OOMPH_OK)
        return;
    if (wait->clock != NULL) {
        pop(streams, wait->clock);
        return;
    }
    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        if (s->device == wait->device)
            drained(streams, &s->clock);
    if (wait->device == streams->device)
        drained(streams, &streams->clock);
}
