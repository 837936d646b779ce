/* planner.h - what a planner of transfers asks, which moves what is used later out of
 * the way of need.
 */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A buffer of at least `bytes` on host pages, for copies on `stream`, which is never
// destroyed. It is freed as any block, but is no allocation of the program's: PyTorch's
// counters leave it out, and it is no rescue. Never waits for the device unless host
// pages that are free must come from elsewhere. Errors: OOMPH_ERR_NO_MEMORY (host
// pages, the host limit, or offloading is off), OOMPH_ERR_INVALID, OOMPH_ERR_DRIVER.
oomph_status_t oomph_buffer(int device, size_t bytes, oomph_stream_t stream,
                            oomph_addr_t *addr);

// Queues a copy of `bytes` on the stream, between any memory that the device may use.
// Errors: OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_copy(int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
                          oomph_stream_t stream);

// Has every stream that is known to use memory of the device, and is never destroyed,
// wait for what `stream` has been given so far; those that capture do not. Errors:
// OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_all_wait(int device, oomph_stream_t stream);

// Whether the device has reached an event that others recorded. False while any stream
// captures, on any device: asking CUDA would end the capture. Errors: OOMPH_ERR_DRIVER,
// OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_event_passed(int device, oomph_event_t event, bool *passed);

// For a planner that cannot make room for large blocks. If a block of this size, at
// least `min_bytes`, fell back to the host in the last step, the next one that finds no
// room goes there at once and is not a rescue, with at least `part_bytes` of it, which
// others then find on the device. 0 (default): off. Errors: OOMPH_ERR_INVALID,
// OOMPH_ERR_DRIVER.
oomph_status_t oomph_predict_host(int device, size_t min_bytes, size_t part_bytes);

// What the program's blocks in use take together, on device and host, in bytes.
typedef struct oomph_usage {
    size_t now;
    size_t high;         // the most since the last call
    size_t host;         // now, of these on host pages
    size_t host_high;    // the most since the last call
    size_t device_high;  // the most on the device since the last call
    size_t device_bytes; // that blocks can have on this device within its limits
} oomph_usage_t;

// Reads it and resets the marks. For one caller: a second one would reset them, too.
// Errors: OOMPH_ERR_INVALID, OOMPH_ERR_DRIVER.
oomph_status_t oomph_read_usage(int device, oomph_usage_t *usage);
