/* queue.h - the order and the time of work. A discrete-event simulation: each stream
 * does one operation after the other, an operation starts when it is first in its
 * stream and may start, and completes when engine.h says. The caller holds the driver's
 * lock.
 *
 * An operation costs O(log n) of those that run, and each that
 * completes a look at every stream that waits.
 */
#pragma once
#include "libcuda/engine/pending.h"

// Puts work at the end of a stream; sim_queue_start_ready() follows. False when the
// host has no memory.
bool sim_queue_append(CUstream stream, const sim_work_t *work);

// Starts all that may start.
void sim_queue_start_ready(void);
// The same, of what waited too: other threads and processes may have gone on.
void sim_queue_recheck(void);

// The operation that ends first, or NULL.
const sim_operation_t *sim_queue_top(void);

// Moves the clock to the next end of an operation, which must be there.
void sim_queue_step(void);

// Moves the clock; completes what ends by then.
void sim_queue_advance(uint64_t ns);

// The stream on whose first operation `stream` depends in the end.
CUstream sim_queue_find_blocker(CUstream stream);

void sim_queue_hold(CUstream stream);
void sim_queue_release(CUstream stream);

void sim_queue_reset(void);
