/* effects.h - what work does when it completes. The caller holds the driver's lock. */
#pragma once
#include "libcuda/objects/work.h"

// What the work does on the stream's device, at its completion. Host functions are run
// by callback.c instead.
void sim_work_execute(const sim_work_t *work, CUstream stream, uint64_t now_ns);
