/* host_use.h - what a step used on host pages, whatever had put it there. */
#pragma once
#include "core/device/device.h"

// A step has ended: adds what stayed on the host all through it to host_used_bytes, and
// notes how much that count has grown since the step began.
void oomph_host_use_end_step(oomph_device_t *device);
