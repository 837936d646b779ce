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
 * stream, and waits for the device before it gives it to others. That stream may have
 * the page sooner, beside its old address (alias.h). A stream's own clock serves frees
 * that name the streams they wait for (record_stream).
 *
 * The caller holds the device lock. Nothing here waits for the GPU (clock.h does).
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
    oomph_stream_state_t *last; // found last of our device that live; NULL: none yet
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
