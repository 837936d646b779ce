/* pending.h - the operations that streams were given and that have not completed. The
 * caller holds the driver's lock.
 *
 * A list for each stream, and one through all that touch memory: a question about a
 * range goes through the latter, O(n).
 */
#pragma once
#include "libcuda/objects/stream.h"

struct sim_operation {
    sim_object_t object;
    sim_work_t work;
    CUstream stream;
    uint64_t number; // its ticket: its place in the stream, from 1
    uint64_t given_ns, end_ns;
    uint64_t sequence; // orders equal end times
    bool started, executing, parked;
    bool has_come;                              // its stream, to it
    sim_operation_t *next;                      // in the stream
    sim_operation_t *next_due;                  // among those that effects.c runs
    void (*done)(sim_operation_t *operation);   // called when it has run there
    sim_operation_t *next_memory, *prev_memory; // among those that touch memory
};

// Puts work at the end of a stream. NULL when the host has no memory.
sim_operation_t *sim_pending_add(CUstream stream, const sim_work_t *work);

// The first operation of its stream is over; frees it and what its work owns.
void sim_pending_remove(sim_operation_t *operation);

// Whether the stream has come that far.
bool sim_ticket_is_done(sim_ticket_t ticket);

// When it had, if it has. Of what is long ago, a later time.
uint64_t sim_ticket_end_ns(sim_ticket_t ticket);

// The ticket of what was given to the stream last.
sim_ticket_t sim_ticket_of_last(CUstream stream);

// The operations that touch memory, linked by `next_memory`, newest first.
const sim_operation_t *sim_pending_users(void);

// Whether no other stream has any.
bool sim_pending_is_sole_user(const struct CUstream_st *stream);

// An operation of another stream than `except` that touches the range, or NULL.
const sim_operation_t *sim_pending_find_user(uint64_t addr, uint64_t bytes,
                                             CUstream except);

// Whether any writes any of the range.
bool sim_pending_writes(uint64_t addr, uint64_t bytes);

uint64_t sim_pending_count(void);
uint64_t sim_pending_meeting_count(void); // of these, those that need other processes
uint64_t sim_pending_executed_count(void);

void sim_pending_reset(void);
