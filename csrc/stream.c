#include "stream.h"

#include <stdlib.h>

static const oomph_stream_t LEGACY = (oomph_stream_t)1; // the same stream as 0

void oomph_streams_init(oomph_streams_t *streams, const oomph_driver_t *driver,
                        int device)
{
    *streams = (oomph_streams_t){.driver = driver, .device = device};
}

void oomph_streams_destroy(oomph_streams_t *streams)
{
    const oomph_driver_t *driver = streams->driver;

    for (oomph_stream_state_t *s = streams->list, *next; s != NULL; s = next) {
        next = s->next;
        for (unsigned i = 0; i < s->count; i++)
            driver->event_destroy(streams->device,
                                  s->ring[(s->first + i) % OOMPH_EPOCH_RING].event);
        free(s);
    }
    while (streams->spare_count > 0)
        driver->event_destroy(streams->device, streams->spare[--streams->spare_count]);
    *streams = (oomph_streams_t){0};
}

/* ---- Identity */

static oomph_stream_state_t *find_living(const oomph_streams_t *streams,
                                         oomph_stream_t handle)
{
    oomph_stream_state_t *s = streams->list;

    while (s != NULL && !(s->lives && s->handle == handle))
        s = s->next;
    return s;
}

static oomph_stream_state_t *find_by_id(const oomph_streams_t *streams, uint64_t id)
{
    oomph_stream_state_t *s = streams->list;

    while (s != NULL && (s->lives || s->id != id))
        s = s->next;
    return s;
}

static oomph_status_t add(oomph_streams_t *streams, oomph_stream_t handle, bool lives,
                          uint64_t id, oomph_stream_state_t **stream)
{
    oomph_stream_state_t *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a stream");
    fresh->handle = handle;
    fresh->lives = lives;
    fresh->id = id;
    fresh->open = 1;
    fresh->next = streams->list;
    streams->list = fresh;
    *stream = fresh;
    return OOMPH_OK;
}

oomph_status_t oomph_stream_get(oomph_streams_t *streams, oomph_stream_t handle,
                                bool lives, oomph_stream_state_t **stream)
{
    uint64_t id = 0;

    if (handle == LEGACY)
        handle = NULL;
    if (handle == NULL)
        lives = true;
    if (streams->last != NULL && streams->last->lives &&
        streams->last->handle == handle) {
        *stream = streams->last;
        return OOMPH_OK;
    }
    oomph_stream_state_t *found = find_living(streams, handle);
    if (found == NULL && !lives) {
        oomph_status_t status =
            streams->driver->stream_id(streams->device, handle, &id);
        if (status != OOMPH_OK)
            return status;
        found = find_by_id(streams, id);
    }
    if (found == NULL) {
        oomph_status_t status = add(streams, handle, lives, id, &found);
        if (status != OOMPH_OK)
            return status;
    }
    streams->last = found;
    *stream = found;
    return OOMPH_OK;
}

oomph_status_t oomph_stream_ask(const oomph_streams_t *streams,
                                const oomph_stream_state_t *stream, bool *captures)
{
    if (stream->lives)
        return streams->driver->stream_captures(streams->device, stream->handle,
                                                captures);
    *captures = streams->scopes > 0;
    return OOMPH_OK;
}

bool oomph_stream_captures(const oomph_streams_t *streams,
                           const oomph_stream_state_t *stream)
{
    bool captures = false;

    return oomph_stream_ask(streams, stream, &captures) != OOMPH_OK || captures;
}

bool oomph_streams_capture(const oomph_streams_t *streams)
{
    for (const oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        if (oomph_stream_captures(streams, s))
            return true;
    return false;
}

/* ---- Epochs */

static bool event_take(oomph_streams_t *streams, oomph_event_t *event)
{
    if (streams->spare_count > 0) {
        *event = streams->spare[--streams->spare_count];
        return true;
    }
    return streams->driver->event_create(streams->device, event) == OOMPH_OK;
}

static void event_give(oomph_streams_t *streams, oomph_event_t event)
{
    if (streams->spare_count < OOMPH_EPOCH_RING)
        streams->spare[streams->spare_count++] = event;
    else
        streams->driver->event_destroy(streams->device, event);
}

void oomph_stream_close(oomph_streams_t *streams, oomph_stream_state_t *stream,
                        bool there)
{
    oomph_event_t event;

    if (stream->count == OOMPH_EPOCH_RING || !(stream->lives || there) ||
        oomph_stream_captures(streams, stream) || !event_take(streams, &event))
        return;
    if (streams->driver->event_record(streams->device, event, stream->handle) !=
        OOMPH_OK) {
        event_give(streams, event);
        return;
    }
    unsigned last = (stream->first + stream->count) % OOMPH_EPOCH_RING;
    stream->ring[last].epoch = stream->open;
    stream->ring[last].event = event;
    stream->count++;
    stream->open++;
    stream->freed_bytes = 0;
}

static void pop(oomph_streams_t *streams, oomph_stream_state_t *stream)
{
    uint64_t epoch = stream->ring[stream->first].epoch;

    if (epoch > stream->passed)
        stream->passed = epoch;
    event_give(streams, stream->ring[stream->first].event);
    stream->first = (stream->first + 1) % OOMPH_EPOCH_RING;
    stream->count--;
}

bool oomph_stream_poll(oomph_streams_t *streams, oomph_stream_state_t *stream)
{
    uint64_t before = stream->passed;
    bool passed = true;

    while (stream->count > 0 && !stream->waited_for && passed) {
        if (streams->driver->event_passed(streams->device,
                                          stream->ring[stream->first].event,
                                          &passed) != OOMPH_OK)
            break;
        if (passed)
            pop(streams, stream);
    }
    return stream->passed > before;
}

void oomph_stream_catch_up(oomph_streams_t *streams, oomph_stream_state_t *stream)
{
    oomph_stream_poll(streams, stream); // makes room for one more epoch
    if (stream->freed_bytes > 0)
        oomph_stream_close(streams, stream, false);
    oomph_stream_poll(streams, stream);
}

/* ---- Waiting */

bool oomph_stream_wait_begin(oomph_streams_t *streams, oomph_stream_state_t *stream,
                             oomph_wait_t *wait)
{
    if (!stream->lives)
        return oomph_streams_drain_begin(streams, wait);
    if (stream->count == 0)
        oomph_stream_close(streams, stream, true);
    if (stream->count == 0 || stream->waited_for)
        return false;
    stream->waited_for = true;
    *wait = (oomph_wait_t){stream, stream->ring[stream->first].event};
    return true;
}

bool oomph_streams_drain_begin(oomph_streams_t *streams, oomph_wait_t *wait)
{
    if (streams->scopes > 0 || oomph_streams_capture(streams))
        return false;
    // What is freed from now on belongs to an epoch that the drain does not cover.
    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        s->draining = s->open++;
    *wait = (oomph_wait_t){0};
    return true;
}

oomph_status_t oomph_stream_wait(const oomph_streams_t *streams,
                                 const oomph_wait_t *wait)
{
    return wait->stream != NULL
               ? streams->driver->event_wait(streams->device, wait->event)
               : streams->driver->drain(streams->device);
}

static void drained(oomph_streams_t *streams, oomph_stream_state_t *stream)
{
    if (stream->draining > stream->passed)
        stream->passed = stream->draining;
    stream->draining = 0;
    while (stream->count > 0 && !stream->waited_for &&
           stream->ring[stream->first].epoch <= stream->passed)
        pop(streams, stream);
}

void oomph_stream_wait_end(oomph_streams_t *streams, const oomph_wait_t *wait,
                           oomph_status_t waited)
{
    if (wait->stream != NULL)
        wait->stream->waited_for = false;
    if (waited != OOMPH_OK)
        return;
    if (wait->stream != NULL) {
        pop(streams, wait->stream);
        return;
    }
    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        drained(streams, s);
}

/* ---- Blocks that other streams use */

enum { USE_ROOM = 4 }; // uses that a record has room for, and grows by

static size_t uses_bytes(size_t count)
{
    return sizeof(oomph_uses_t) + count * sizeof(oomph_use_t);
}

oomph_uses_t *oomph_uses_new(oomph_stream_state_t *stream)
{
    oomph_uses_t *uses = calloc(1, uses_bytes(USE_ROOM));

    if (uses != NULL)
        uses->use[uses->count++] = (oomph_use_t){.stream = stream};
    return uses;
}

void oomph_uses_attach(oomph_uses_t *uses, oomph_block_t *block)
{
    uses->block = block;
    uses->user = block->use.user;
    block->use.user = uses;
    block->shared = true;
}

oomph_status_t oomph_uses_add(oomph_block_t *block, oomph_stream_state_t *stream)
{
    oomph_uses_t *uses = block->shared ? block->use.user : NULL;
    size_t count = uses == NULL ? 0 : uses->count;

    for (size_t i = 0; i < count; i++)
        if (uses->use[i].stream == stream)
            return OOMPH_OK;
    if (uses == NULL) {
        uses = oomph_uses_new(stream);
        if (uses == NULL)
            goto no_host_memory;
        oomph_uses_attach(uses, block);
        return OOMPH_OK;
    }
    if (count % USE_ROOM == 0) {
        oomph_uses_t *grown = realloc(uses, uses_bytes(count + USE_ROOM));
        if (grown == NULL)
            goto no_host_memory;
        block->use.user = uses = grown;
    }
    uses->use[uses->count++] = (oomph_use_t){.stream = stream};
    return OOMPH_OK;

no_host_memory:
    return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to record a stream");
}

void oomph_uses_wait(oomph_deferred_t *deferred, oomph_uses_t *uses)
{
    uses->next = NULL;
    if (deferred->first == NULL)
        deferred->last = &deferred->first;
    *deferred->last = uses;
    deferred->last = &uses->next;
    deferred->count++;
}

void oomph_uses_defer(oomph_deferred_t *deferred, oomph_streams_t *streams,
                      oomph_block_t *block, const oomph_stream_state_t *own)
{
    oomph_uses_t *uses = block->use.user;

    for (size_t i = 0; i < uses->count; i++) {
        oomph_stream_state_t *stream = uses->use[i].stream;
        uses->use[i].epoch = stream->wanted = stream->open;
        if (!stream->lives && stream != own) // its handle may not be used later
            oomph_stream_close(streams, stream, true);
    }
    block->state = OOMPH_BLOCK_DEFERRED;
    oomph_uses_wait(deferred, uses);
}

static bool have_passed(const oomph_uses_t *uses)
{
    for (size_t i = 0; i < uses->count; i++)
        if (uses->use[i].epoch > uses->use[i].stream->passed)
            return false;
    return true;
}

oomph_uses_t *oomph_uses_collect(oomph_deferred_t *deferred, oomph_streams_t *streams)
{
    oomph_uses_t *done = NULL, **link = &deferred->first;

    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next) {
        if (s->wanted >= s->open)
            oomph_stream_close(streams, s, false);
        if (s->wanted > s->passed)
            oomph_stream_poll(streams, s);
    }
    while (*link != NULL) {
        oomph_uses_t *uses = *link;
        if (!have_passed(uses)) {
            link = &uses->next;
            continue;
        }
        *link = uses->next;
        uses->next = done;
        done = uses;
        deferred->count--;
    }
    deferred->last = link;
    return done;
}
