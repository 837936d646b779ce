/* fault.h - memory that work may not touch: the context of its stream breaks. The
 * caller holds the driver's lock.
 */
#pragma once
#include "libcuda/objects/work.h"

// Whether the stream's device may touch the work's `bytes` at `addr`; a fault if not.
bool sim_fault_check(const sim_work_t *work, CUstream stream, uint64_t addr,
                     bool write);

// Whether it may touch all memory that the work uses; a fault if not. False too if the
// context is broken already.
bool sim_work_may_use_memory(const sim_work_t *work, CUstream stream);
