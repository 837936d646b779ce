/* promote.h - blocks on host that return to the device. */
#pragma once
#include "core/device/device.h"

// A step has ended, with so many bytes of blocks on the device at its peak: moves
// blocks that outlived a whole one on host and are idle between steps to the device, if
// that has room for them at the peak of a step. Gives the lock up for a while.
void oomph_promote_survivors(oomph_device_t *device, int64_t device_peak);
