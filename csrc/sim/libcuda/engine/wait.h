/* wait.h - waits for work, by moving the clock: those of the program, and those of
 * other processes. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/objects/mark.h"
#include "libcuda/objects/stream.h"

// Block until done, moving the clock. Held streams on the way are released and counted.
void sim_queue_wait(sim_ticket_t ticket);
void sim_queue_wait_for_stream(CUstream stream);
void sim_queue_wait_for_context(CUcontext context);

// Whether everything that a call on the stream would wait for is done: for the default
// stream that includes the blocking streams of its context.
bool sim_queue_is_idle(CUstream stream);

uint64_t sim_queue_held_waits(void);

// Whether nothing that was given to the device can go on, but by what other processes
// do or the program.
bool sim_queue_is_at_rest(void);

// As sim_record_begin(). While records of shared marks are pending (record.h), a thread
// looks every millisecond whether another process asks for one, and moves the clock up
// to it, as a thread of the program would that waits.
CUresult sim_answer_begin(sim_mark_t *mark);

// Before work that needs other processes is given to a stream: a thread looks every
// millisecond whether they wait for this one, as long as there is such work. False:
// there can be no thread.
bool sim_meeting_begin(void);

void sim_wait_reset(void);
