/* callback.h - host functions of streams, and computations that call the driver, run in
 * a thread of their own, without the driver's lock, as on hardware. The caller holds
 * the driver's lock.
 */
#pragma once
#include "libcuda/engine/pending.h"

// Hands over an operation whose host function is due; `done` is called, with the lock,
// when that has returned. Without a thread (the host has no resources) the function is
// called at once.
void sim_callback_run(sim_operation_t *operation, void (*done)(sim_operation_t *));

// Whether this thread is inside a host function of a stream: its driver calls are not
// permitted.
bool sim_callback_is_this_thread(void);

// Host functions that have not returned.
uint64_t sim_callback_count(void);
