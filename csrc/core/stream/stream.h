/* stream.h - what has finished on a stream and on the device, and frees that wait.
 *
 * Time is cut into epochs, by a clock of each stream and by one of the whole device.
 * What is freed carries the number of the epoch that is open; closing an epoch records
 * one event, and when that has passed, all work that the clock covers and that was
 * queued before anything freed in the epoch has finished. So one event serves many
 * frees, and none is recorded before somebody asks.
 *
 * A page may move once the device's clock has passed its epoch: a program may use a
 * block on any stream without a word to the allocator, as long as the block's own
 * stream waits before it takes the memory again. PyTorch's allocator keeps it for that
 * stream, and waits for the device before it gives it to others. A stream's own clock
 * serves frees that name the streams they wait for (record_stream).
 *
 * The caller holds the device lock. Only oomph_clock_wait() waits for the GPU.
 */
#pragma once
#include "core/heap/block.h"
#include "driver/driver.h"

#include <pthread.h>

enum { OOMPH_EPOCH_RING = 32 };

typedef struct oomph_stream_state oomph_stream_state_t;

typedef struct oomph_clock {
    oomph_stream_state_t *stream; // that it is of; NULL: of the whole device
    uint64_t open;                // the epoch of what is freed now; from 1
    uint64_t passed;              // epochs up to this one have passed
    uint64_t wanted;              // the newest epoch that a deferred free waits for
    uint64_t draining;            // the newest epoch that the drain under way covers
    struct {
        uint64_t epoch;
        oomph_event_t event;
    } ring[OOMPH_EPOCH_RING]; // closed epochs that have not passed, oldest first
    unsigned first, count;
    bool waited_for; // a thread waits for the oldest event, without the lock
} oomph_clock_t;

struct oomph_stream_state {
    oomph_stream_state_t *next;
    oomph_stream_t handle;
    int device;     // whose stream it is: perhaps another's, which uses our memory
    uint64_t id;    // of cuStreamGetId; unset if `lives`
    bool lives;     // never destroyed: the handle names it
    bool capturing; // as it was when seen last, for one that may be gone
    uint64_t seen;  // the tick in which it was named last; unset if `lives`
    size_t users;   // pools of it, and uses of blocks that wait for its clock
    oomph_clock_t clock;
    void *pools[2];         // the default pools of the stream, for the caller
    size_t workspace_bytes; // of libraries, in use on the stream; for the caller,
    size_t workspace_peak;  // and the most so far
};

typedef struct oomph_streams {
    const oomph_driver_t *driver;
    int device;
    oomph_stream_state_t *list;
    oomph_stream_state_t *last; // found last
    oomph_clock_t clock;        // of the whole device
    uint64_t floor;             // what was freed before counts as freed in this epoch
    bool stamped;               // something counts as freed in the open epoch,
    size_t freed_bytes;         // so much as far as it is known
    bool beginning;             // a thread is about to begin a capture:
    pthread_t beginner;         // this one
    uint64_t tick;              // counts steps, and streams that may be gone
    bool strays;                // some that may be gone were forgotten (and may live)
    oomph_stream_t joint;       // waits for all others, where the driver cannot
    oomph_event_t spare[OOMPH_EPOCH_RING];
    unsigned spare_count;
} oomph_streams_t;

void oomph_streams_init(oomph_streams_t *streams, const oomph_driver_t *driver,
                        int device);

// The stream that the handle names now on `device`, which is open. `lives`: the caller
// knows that it is never destroyed. Errors: OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY (host
// memory).
oomph_status_t oomph_stream_get(oomph_streams_t *streams, int device,
                                oomph_stream_t handle, bool lives,
                                oomph_stream_state_t **stream);

// Whether it may be gone, and nobody has named it for a while.
bool oomph_stream_is_idle(const oomph_streams_t *streams,
                          const oomph_stream_state_t *stream);
// Forgets the idle streams that nothing names: a program may make new ones for ever.
void oomph_streams_prune(oomph_streams_t *streams);

/* ---- Captures */

// The calling thread is about to begin a capture on the stream, or has ended what it
// began. In between nobody else records an event, until that thread allocates or asks
// again: a capture may begin at any moment.
void oomph_streams_begin(oomph_streams_t *streams, oomph_stream_state_t *stream);
void oomph_streams_end(oomph_streams_t *streams);

// Whether the stream captures: then no event of it is recorded or waited for. The
// driver tells, so that a capture that failed is over once PyTorch has ended it; of a
// stream that may be gone, what was true when it was used last.
// oomph_stream_captures() takes a failure to tell for yes. Errors: OOMPH_ERR_DRIVER.
oomph_status_t oomph_stream_ask(const oomph_streams_t *streams,
                                const oomph_stream_state_t *stream, bool *captures);
bool oomph_stream_captures(const oomph_streams_t *streams,
                           const oomph_stream_state_t *stream);

// Whether any stream captures, or may begin to. Errors: OOMPH_ERR_DRIVER.
oomph_status_t oomph_streams_ask(oomph_streams_t *streams, bool *capture);
// The same; a failure to tell is taken for yes.
bool oomph_streams_capture(oomph_streams_t *streams);

/* ---- Epochs */

// Closes the open epoch. Without effect while its stream, or of the device's clock any
// stream, captures; while too many epochs have not passed; and where a handle would be
// needed that must not be used; `there`: the caller knows that the stream exists now.
void oomph_clock_close(oomph_streams_t *streams, oomph_clock_t *clock, bool there);
// Looks which epochs have passed; true if some have since the last look.
bool oomph_clock_poll(oomph_streams_t *streams, oomph_clock_t *clock);
// The epoch of the device's clock for what is freed now.
static inline uint64_t oomph_streams_stamp(oomph_streams_t *streams, size_t bytes)
{
    streams->stamped = true;
    streams->freed_bytes += bytes;
    return streams->clock.open;
}
// Looks at the device's clock, after closing its epoch if anything was freed in it:
// else nobody could know that the work before has finished.
void oomph_streams_catch_up(oomph_streams_t *streams);

// The clock of a stream that a deferred free waits for and that may be waited for;
// NULL: none.
oomph_clock_t *oomph_streams_awaited(oomph_streams_t *streams);

/* ---- Waiting without the lock
 *
 * begin() closes the open epoch if it must and gives what to wait for; false if it must
 * not be waited for. Where there is no event to wait for, it is all work of the clock's
 * device. Between begin() and end() the caller gives up the lock and calls wait().
 */
typedef struct oomph_wait {
    oomph_clock_t *clock; // whose oldest event it is; NULL: all work of the device
    int device;
    oomph_event_t event;
} oomph_wait_t;
bool oomph_clock_wait_begin(oomph_streams_t *streams, oomph_clock_t *clock,
                            oomph_wait_t *wait);
// The same for all work of our device.
bool oomph_streams_drain_begin(oomph_streams_t *streams, oomph_wait_t *wait);
oomph_status_t oomph_clock_wait(const oomph_streams_t *streams,
                                const oomph_wait_t *wait);
void oomph_clock_wait_end(oomph_streams_t *streams, const oomph_wait_t *wait,
                          oomph_status_t waited);
