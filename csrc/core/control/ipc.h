/* ipc.h - pages of other processes. */
#pragma once
#include "core/device/device.h"

// Unmaps what was dropped, after waiting for the device; what cannot be unmapped now,
// the next time.
void oomph_imports_release(oomph_device_t *device);
