/* answer.h - does the work that other processes wait for. The caller holds the driver's
 * lock.
 *
 * While records of shared marks are pending (record.h), a thread looks every
 * millisecond whether another process asks for one, and moves the clock up to it, as a
 * thread of the program would that waits.
 */
#pragma once
#include "libcuda/objects/mark.h"

// As sim_record_begin(); starts the thread if need be.
CUresult sim_answer_begin(sim_mark_t *mark);

void sim_answer_reset(void);
