/* gate.c - see gate.h. What it rests on:
 *
 * - The mark and the wait are one call, so that no launch of another thread comes
 *   between them: whatever a stream got is before the mark, and has finished, or behind
 *   the wait, and has not begun.
 * - The default stream waits for all blocking streams and they for it. So its gate
 *   holds those too, known or not, and its mark says that they have finished. One of
 *   their own they must not get: its mark would wait for the default stream's gate.
 * - Two streams that others order by events while the gate closes may each wait for the
 *   other's gate, and streams may share a queue of the hardware. Then a mark does not
 *   come, and the gate is opened again.
 * - Only streams that allocate, or that oomph was told of, are known. Nobody can list
 *   the others.
 * - A wait for a value is invisible to CUDA, which may put our copies behind it. So
 *   they are never waited for without a limit while the gate is closed.
 * - A call of ours may not return while another thread waits for a stream that we hold,
 *   if the driver has a lock for both. So a thread opens the gate if that lasts, up to
 *   the moment from which nothing may run. The calls behind that moment are of the kind
 *   of those just before it. Whether they can be held up only hardware can tell.
 * - The flag only ever grows, and waits are for "at least": a wait of an earlier turn,
 *   such as one that a graph captured by accident, holds nothing. A mark written again
 *   by such a graph is an old one: a gate can be missed by that, not passed.
 */
#include "gate.h"

#include <stdatomic.h>
#include <time.h>

enum {
    MARKS_MAX = 1023, // streams
    FLAG_BYTES = (MARKS_MAX + 1) * sizeof(uint32_t),
    GRACE_MS = 500, // after these times, until a call is taken to be stuck
    MARK_MS = 20,   // for the marks: what was queued before the drain has finished
    COPY_MS = 500,  // for copies, and
    COPY_BYTES_PER_MS = 1000000, // so much more time for them: a slow link
};

typedef _Atomic(uint32_t) word_t;

static word_t *word(const oomph_gate_t *gate, size_t index)
{
    return (word_t *)(uintptr_t)gate->flags + index;
}

static oomph_addr_t word_addr(const oomph_gate_t *gate, size_t index)
{
    return gate->flags + index * sizeof(uint32_t);
}

/* ---- Open or closed */

void oomph_gate_init(oomph_gate_t *gate, const oomph_streams_t *streams)
{
    pthread_condattr_t monotonic;

    gate->streams = streams;
    pthread_mutex_init(&gate->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&gate->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

// The caller holds the gate's lock.
static void let_go(oomph_gate_t *gate)
{
    atomic_store(word(gate, 0), gate->turn);
    gate->state = OOMPH_GATE_OPEN;
    gate->closed_ns += oomph_now_ns() - gate->closed_at_ns;
}

static void *guard(void *argument)
{
    oomph_gate_t *gate = argument;

    pthread_mutex_lock(&gate->lock);
    while (!gate->stopping) {
        if (gate->state != OOMPH_GATE_CLOSED) {
            pthread_cond_wait(&gate->changed, &gate->lock);
        } else if (oomph_now_ns() < gate->late_at_ns) {
            struct timespec until = {gate->late_at_ns / 1000000000,
                                     gate->late_at_ns % 1000000000};
            pthread_cond_timedwait(&gate->changed, &gate->lock, &until);
        } else {
            let_go(gate);
        }
    }
    pthread_mutex_unlock(&gate->lock);
    return NULL;
}

static oomph_status_t start_guard(oomph_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (!gate->guarded && !gate->stopping)
        gate->guarded = pthread_create(&gate->guard, NULL, guard, gate) == 0;
    bool guarded = gate->guarded;
    pthread_mutex_unlock(&gate->lock);
    return guarded ? OOMPH_OK
                   : oomph_fail(OOMPH_ERR_STATE,
                                "no window: no thread can be started to open it");
}

void oomph_gate_stop(oomph_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    bool guarded = gate->guarded;
    gate->guarded = false;
    gate->stopping = true;
    pthread_cond_signal(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
    if (guarded)
        pthread_join(gate->guard, NULL);
}

// Gives it so much time from now on; gives when that is over, or 0 if it is open.
static int64_t allow_ms(oomph_gate_t *gate, int64_t ms)
{
    int64_t now_ns = oomph_now_ns();

    pthread_mutex_lock(&gate->lock);
    bool closed = gate->state != OOMPH_GATE_OPEN;
    gate->late_at_ns = now_ns + (ms + GRACE_MS) * 1000000;
    pthread_mutex_unlock(&gate->lock);
    return closed ? now_ns + ms * 1000000 : 0;
}

static void shut(oomph_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->turn++;
    gate->state = OOMPH_GATE_CLOSED;
    gate->closed_at_ns = oomph_now_ns();
    gate->late_at_ns = gate->closed_at_ns + (MARK_MS + GRACE_MS) * 1000000LL;
    pthread_cond_signal(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

void oomph_gate_open(oomph_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->state != OOMPH_GATE_OPEN)
        let_go(gate);
    pthread_mutex_unlock(&gate->lock);
}

static oomph_status_t miss(oomph_gate_t *gate, const char *what, int64_t ms)
{
    gate->missed_count++;
    return oomph_fail(OOMPH_ERR_STATE,
                      "no window: %s %lld ms; nothing has moved, and all goes on", what,
                      (long long)ms);
}

// The guard has opened it.
static oomph_status_t miss_stuck(oomph_gate_t *gate)
{
    return miss(gate, "a call did not return for more than", GRACE_MS);
}

oomph_status_t oomph_gate_keep(oomph_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    bool closed = gate->state == OOMPH_GATE_CLOSED;
    if (closed)
        gate->state = OOMPH_GATE_KEPT;
    pthread_mutex_unlock(&gate->lock);
    return closed ? OOMPH_OK : miss_stuck(gate);
}

/* ---- Which streams get one */

static oomph_status_t make(oomph_gate_t *gate)
{
    const oomph_driver_t *driver = gate->streams->driver;
    int device = gate->streams->device;
    oomph_status_t status = OOMPH_OK;

    if (gate->flags == 0) {
        status = driver->pinned_alloc(device, FLAG_BYTES, &gate->flags);
        for (size_t i = 0; i <= MARKS_MAX && status == OOMPH_OK; i++)
            atomic_store(word(gate, i), 0);
    }
    if (status == OOMPH_OK && gate->event == NULL)
        status = driver->event_create(device, &gate->event);
    if (status == OOMPH_OK && gate->copier == NULL)
        status = driver->stream_create(device, &gate->copier);
    if (status == OOMPH_OK)
        status = start_guard(gate);
    return status;
}

static oomph_status_t refuse_stray(void)
{
    return oomph_fail(OOMPH_ERR_STATE,
                      "no window: the program uses a stream that it may destroy at any "
                      "time, so it cannot be held");
}

// Whether the stream needs a gate of its own beside that of the default stream.
static oomph_status_t needs_own(const oomph_streams_t *streams,
                                const oomph_stream_state_t *stream, bool *own)
{
    bool blocks = true;
    oomph_status_t status = OOMPH_OK;

    if (!stream->lives)
        return refuse_stray();
    if (stream->handle != NULL)
        status =
            streams->driver->stream_blocks(streams->device, stream->handle, &blocks);
    *own = !blocks;
    return status;
}

oomph_status_t oomph_gate_prepare(oomph_gate_t *gate)
{
    size_t count = 1;
    oomph_status_t status = make(gate);

    if (status == OOMPH_OK && gate->streams->strays)
        status = refuse_stray();
    for (oomph_stream_state_t *s = gate->streams->list; s != NULL; s = s->next) {
        bool own = false;
        if (status == OOMPH_OK)
            status = needs_own(gate->streams, s, &own);
        s->gated = own;
        count += own;
    }
    if (status == OOMPH_OK && count > MARKS_MAX)
        status =
            oomph_fail(OOMPH_ERR_STATE, "no window: %zu streams are too many", count);
    return status;
}

/* ---- Closing */

static bool all_marks_are_there(const oomph_gate_t *gate, size_t count)
{
    for (size_t i = 1; i <= count; i++)
        if (atomic_load(word(gate, i)) != gate->turn)
            return false;
    return true;
}

// Asking about an event makes the driver submit what it still holds back.
static bool event_passed(const oomph_gate_t *gate, oomph_status_t *status)
{
    bool passed = false;

    *status = gate->streams->driver->event_passed(gate->streams->device, gate->event,
                                                  &passed);
    return *status == OOMPH_OK && passed;
}

static oomph_status_t wait_for_marks(oomph_gate_t *gate, size_t count)
{
    int64_t deadline_ns = allow_ms(gate, MARK_MS);
    oomph_status_t status = OOMPH_OK;
    bool late = false; // seen before the marks are looked at for the last time

    while (status == OOMPH_OK && !all_marks_are_there(gate, count)) {
        if (deadline_ns == 0)
            return miss_stuck(gate);
        if (late)
            return miss(gate, "work that others queued went on for", MARK_MS);
        event_passed(gate, &status);
        late = oomph_now_ns() > deadline_ns;
    }
    return status;
}

static oomph_status_t hold(const oomph_gate_t *gate, oomph_stream_t stream,
                           size_t *count)
{
    const oomph_streams_t *streams = gate->streams;

    ++*count;
    return streams->driver->stream_gate(streams->device, stream,
                                        word_addr(gate, *count), word_addr(gate, 0),
                                        gate->turn);
}

oomph_status_t oomph_gate_close(oomph_gate_t *gate)
{
    size_t count = 0;
    oomph_status_t status = oomph_gate_prepare(gate);
    if (status != OOMPH_OK)
        return status;

    shut(gate);
    status = hold(gate, NULL, &count);
    for (const oomph_stream_state_t *s = gate->streams->list;
         s != NULL && status == OOMPH_OK; s = s->next)
        if (s->gated)
            status = hold(gate, s->handle, &count);
    if (status == OOMPH_OK)
        status = wait_for_marks(gate, count);
    if (status != OOMPH_OK)
        oomph_gate_open(gate);
    return status;
}

/* ---- Copying while it is closed */

static oomph_status_t queue(const oomph_gate_t *gate, const oomph_copy_t *copies,
                            size_t count)
{
    const oomph_driver_t *driver = gate->streams->driver;
    int device = gate->streams->device;
    oomph_status_t status = OOMPH_OK;

    for (size_t i = 0; i < count && status == OOMPH_OK; i++)
        status = driver->copy(device, copies[i].to, copies[i].from, copies[i].bytes,
                              gate->copier);
    if (status == OOMPH_OK)
        status = driver->event_record(device, gate->event, gate->copier);
    return status;
}

static oomph_status_t wait_for_copies(oomph_gate_t *gate, size_t bytes)
{
    int64_t ms = COPY_MS + (int64_t)(bytes / COPY_BYTES_PER_MS);
    int64_t deadline_ns = allow_ms(gate, ms);
    oomph_status_t status;
    bool late = false; // seen before they are asked about for the last time

    while (!event_passed(gate, &status) && status == OOMPH_OK) {
        if (deadline_ns == 0)
            return miss_stuck(gate);
        if (late)
            return miss(gate, "the copies were not done after", ms);
        late = oomph_now_ns() > deadline_ns;
    }
    return status;
}

// Nothing holds the copies any more. They must not run on.
static void end_copies(const oomph_gate_t *gate)
{
    const oomph_driver_t *driver = gate->streams->driver;
    int device = gate->streams->device;

    if (driver->event_record(device, gate->event, gate->copier) != OOMPH_OK ||
        driver->event_wait(device, gate->event) != OOMPH_OK)
        driver->drain(device);
}

oomph_status_t oomph_gate_copy(oomph_gate_t *gate, const oomph_copy_t *copies,
                               size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += copies[i].bytes;
    oomph_status_t status = queue(gate, copies, count);
    if (status == OOMPH_OK)
        status = wait_for_copies(gate, bytes);
    if (status != OOMPH_OK) {
        oomph_gate_open(gate);
        end_copies(gate);
    }
    return status;
}
