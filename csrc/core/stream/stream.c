/* stream.c - streams in a list, the one found last first tried: a program has few. One
 * that may be destroyed is known by its id, since its handle may come again.
 */
#include "core/stream/capture.h"
#include "core/stream/clock.h"

#include <stdlib.h>

enum { IDLE_TICKS = 8 };

static const oomph_stream_t LEGACY = (oomph_stream_t)1; // the same stream as 0

void oomph_streams_init(oomph_streams_t *streams, const oomph_driver_t *driver,
                        int device)
{
    *streams =
        (oomph_streams_t){.driver = driver, .device = device, .clock = {.open = 1}};
}

/* ---- Identity */

static oomph_stream_state_t *find_living(const oomph_streams_t *streams, int device,
                                         oomph_stream_t handle)
{
    oomph_stream_state_t *s = streams->list;

    while (s != NULL && !(s->lives && s->handle == handle && s->device == device))
        s = s->next;
    return s;
}

static oomph_stream_state_t *find_by_id(const oomph_streams_t *streams, int device,
                                        uint64_t id)
{
    oomph_stream_state_t *s = streams->list;

    while (s != NULL && (s->lives || s->id != id || s->device != device))
        s = s->next;
    return s;
}

static oomph_status_t add(oomph_streams_t *streams, int device, oomph_stream_t handle,
                          bool lives, uint64_t id, oomph_stream_state_t **stream)
{
    oomph_stream_state_t *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a stream");
    fresh->handle = handle;
    fresh->device = device;
    fresh->lives = lives;
    fresh->id = id;
    fresh->clock.stream = fresh;
    fresh->clock.open = 1;
    fresh->next = streams->list;
    streams->list = fresh;
    *stream = fresh;
    return OOMPH_OK;
}

// A stream that may be gone later: what can be known of it only now.
static oomph_status_t get_passing(oomph_streams_t *streams, int device,
                                  oomph_stream_t handle, oomph_stream_state_t **stream)
{
    uint64_t id = 0;
    bool capturing = false;

    oomph_status_t status = streams->driver->stream_id(device, handle, &id);
    if (status == OOMPH_OK)
        status = streams->driver->stream_captures(device, handle, &capturing);
    if (status != OOMPH_OK)
        return status;
    oomph_stream_state_t *found = find_by_id(streams, device, id);
    if (found == NULL) {
        status = add(streams, device, handle, false, id, &found);
        if (found == NULL)
            return status;
        streams->tick++;
    }
    found->capturing = capturing;
    found->seen = streams->tick;
    *stream = found;
    return OOMPH_OK;
}

oomph_status_t oomph_stream_get(oomph_streams_t *streams, int device,
                                oomph_stream_t handle, bool lives,
                                oomph_stream_state_t **stream)
{
    if (handle == LEGACY)
        handle = NULL;
    if (handle == NULL)
        lives = true;
    oomph_streams_see_begun(streams);
    if (streams->last != NULL && streams->last->handle == handle &&
        device == streams->device) {
        *stream = streams->last;
        return OOMPH_OK;
    }
    oomph_stream_state_t *found = find_living(streams, device, handle);
    oomph_status_t status = OOMPH_OK;
    if (found == NULL)
        status = lives ? add(streams, device, handle, lives, 0, &found)
                       : get_passing(streams, device, handle, &found);
    if (status != OOMPH_OK)
        return status;
    if (found->lives && device == streams->device)
        streams->last = found;
    *stream = found;
    return OOMPH_OK;
}

bool oomph_stream_is_idle(const oomph_streams_t *streams,
                          const oomph_stream_state_t *stream)
{
    return !stream->lives && streams->tick - stream->seen > IDLE_TICKS;
}

// Whether nothing would be lost with it.
static bool may_forget(const oomph_streams_t *streams,
                       const oomph_stream_state_t *stream)
{
    const oomph_clock_t *clock = &stream->clock;

    return oomph_stream_is_idle(streams, stream) && stream->users == 0 &&
           !stream->capturing && clock->count == 0 && clock->draining == 0;
}

void oomph_streams_prune(oomph_streams_t *streams)
{
    for (oomph_stream_state_t **link = &streams->list; *link != NULL;) {
        oomph_stream_state_t *stream = *link;
        if (oomph_stream_is_idle(streams, stream))
            oomph_clock_poll(streams, &stream->clock);
        if (!may_forget(streams, stream)) {
            link = &stream->next;
            continue;
        }
        streams->strays = true;
        *link = stream->next;
        free(stream);
    }
}
