/* effects.h - what work does when it completes: at once, or, for host functions and
 * computations that call the driver, in a thread of its own without the driver's lock,
 * as on hardware. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/engine/pending.h"

// What the work does on the stream's device, at its completion.
void sim_work_execute(const sim_work_t *work, CUstream stream, uint64_t now_ns);

// Hands over an operation that runs apart and is due; `done` is called, with the lock,
// when that has returned. Without a thread (the host has no resources) it is run at
// once.
void sim_callback_run(sim_operation_t *operation, void (*done)(sim_operation_t *));

// Whether this thread is inside a host function of a stream: its driver calls are not
// permitted.
bool sim_callback_is_this_thread(void);

// Host functions that have not returned.
uint64_t sim_callback_count(void);

// Bytes copied so far.
typedef enum sim_direction {
    SIM_H2D,
    SIM_D2H,
    SIM_D2D,
    SIM_DIRECTIONS
} sim_direction_t;
uint64_t sim_copied_bytes(sim_direction_t direction);

void sim_effects_reset(void);
