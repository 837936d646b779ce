/* wait.h - waits for work, by moving the clock. The caller holds the driver's lock. */
#pragma once
#include "libcuda/objects/stream.h"

// Block until done, moving the clock. Held streams on the way are released and counted.
void sim_queue_wait(sim_ticket_t ticket);
void sim_queue_wait_for_stream(CUstream stream);
void sim_queue_wait_for_context(CUcontext context);

// Whether everything that a call on the stream would wait for is done: for the default
// stream that includes the blocking streams of its context.
bool sim_queue_is_idle(CUstream stream);

// Moves the clock towards the ticket, at most to `until_ns` (see mark.h), without
// giving the lock away.
void sim_queue_run(sim_ticket_t ticket, uint64_t until_ns);

uint64_t sim_queue_held_waits(void);
void sim_held_waits_reset(void);
