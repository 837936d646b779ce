/* queue.h - the order and the time of work. A discrete-event simulation: each stream
 * does one operation after the other, an operation starts when it is first in its
 * stream and may start, and completes when engine.h says. The caller holds the driver's
 * lock.
 */
#pragma once
#include "libcuda/objects/stream.h"

struct sim_operation {
    sim_object_t object;
    sim_work_t work;
    CUstream stream;
    uint64_t number; // its ticket: its place in the stream, from 1
    uint64_t end_ns;
    uint64_t sequence; // orders equal end times
    bool started, executing, parked;
    sim_operation_t *next;                      // in the stream
    sim_operation_t *next_due;                  // among those that callback.c runs
    sim_operation_t *next_memory, *prev_memory; // among those that touch memory
};

uint64_t sim_queue_now_ns(void);

// Moves the clock; completes what ends by then.
void sim_queue_advance(uint64_t ns);

// Gives `work` to the stream, or to the graph that the stream captures; takes over what
// the work owns, also on failure. `ticket`, if not NULL, becomes the place of the work.
// Errors: OUT_OF_MEMORY, those of a capture.
CUresult sim_queue_submit(CUstream stream, const sim_work_t *work,
                          sim_ticket_t *ticket);

// Has the stream wait for all that others of its context have been given. Errors:
// OUT_OF_MEMORY.
CUresult sim_queue_join(CUstream stream);

// Whether the stream has come that far.
bool sim_queue_is_done(sim_ticket_t ticket);

// Whether everything that a call on the stream would wait for is done: for the default
// stream that includes the blocking streams of its context.
bool sim_queue_is_idle(CUstream stream);

// Block until done, moving the clock. Held streams on the way are released and counted.
void sim_queue_wait(sim_ticket_t ticket);
void sim_queue_wait_for_stream(CUstream stream);
void sim_queue_wait_for_context(CUcontext context);

// Goes on towards the ticket as sim_mark_ask() says, without giving the lock away.
void sim_queue_run(sim_ticket_t ticket, uint64_t until_ns);

// The pending operations that touch memory, linked by `next_memory`, newest first.
const sim_operation_t *sim_queue_memory_users(void);

// Whether no other stream has any.
bool sim_queue_is_sole_user(const struct CUstream_st *stream);

// A pending operation of another stream than `except` that touches the range, or NULL.
const sim_operation_t *sim_queue_find_user(uint64_t addr, uint64_t bytes,
                                           CUstream except);

// Whether pending work writes any of the range.
bool sim_queue_writes(uint64_t addr, uint64_t bytes);

// For callback.c: the host function of `operation` has returned.
void sim_queue_callback_done(sim_operation_t *operation);

void sim_queue_hold(CUstream stream);
void sim_queue_release(CUstream stream);

uint64_t sim_queue_pending_count(void);
uint64_t sim_queue_executed_count(void);
uint64_t sim_queue_held_waits(void);

void sim_queue_reset(void);
