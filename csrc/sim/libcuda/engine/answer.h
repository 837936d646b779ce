/* answer.h - does the work that other processes wait for. The caller holds the driver's
 * lock.
 *
 * While records of shared marks are pending, a thread looks whether another process
 * asks for one (mark.h), and moves the clock up to it, as a thread would that waits.
 */
#pragma once
#include "libcuda/objects/mark.h"
#include "libcuda/objects/work.h"

// A record of the mark that is to be given to a stream: `number` becomes its. Errors:
// OUT_OF_MEMORY.
CUresult sim_answer_begin(sim_mark_t *mark);

// The record's place in its stream, once it is known.
void sim_answer_place(const sim_mark_t *mark, sim_ticket_t ticket);

// The record is done, or was not given to a stream after all.
void sim_answer_end(const sim_mark_t *mark);

void sim_answer_reset(void);
