/* clock.h - epochs closed, looked at and waited for (stream.h). The caller holds the
 * device lock; only oomph_clock_wait() waits for the GPU.
 */
#pragma once
#include "core/stream/stream.h"

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

// Has `stream` wait on the device until the epoch has passed. False where no event says
// so: one of the two captures, or may be gone, or too many epochs have not passed.
bool oomph_clock_have_wait(oomph_streams_t *streams, oomph_clock_t *clock,
                           uint64_t epoch, const oomph_stream_state_t *stream);

// The clock of a stream that a deferred free waits for and that may be waited for;
// NULL: none.
oomph_clock_t *oomph_streams_awaited(oomph_streams_t *streams);

/* ---- Waiting without the lock
 *
 * begin() closes the open epoch if it must and gives what to wait for; false if it must
 * not be waited for. Where there is no event to wait for, it is all work of the clock's
 * device. Between begin() and end() the caller gives up the lock and calls wait().
 * Errors of wait(): OOMPH_ERR_DRIVER, also those of work that was queued before; end()
 * is told, and takes nothing for finished then.
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
