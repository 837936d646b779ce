/* trim.h - what is idle, on its way back to the driver. */
#pragma once
#include "core/device/steal.h"

// Counts the pages of page-locked blocks that nothing uses.
oomph_survey_t oomph_pinned_survey(oomph_device_t *device);
// Returns such blocks whose work has finished until `bytes` are; gives how many were.
size_t oomph_return_pinned(oomph_device_t *device, size_t bytes);
// Returns host memory of any kind likewise, and waits where that helps.
size_t oomph_return_host(oomph_device_t *device, size_t bytes);
// A step has ended: returns host memory that the last steps have not needed, as far as
// the work that used it has finished. Whoever needs it soon after makes it look at more
// steps.
void oomph_return_idle_host(oomph_device_t *device);
// Returns adopted memory of any kind that nothing uses any more; gives how many bytes.
// Gives up the lock for a while.
size_t oomph_return_adopted(oomph_device_t *device);
// Returns device memory until `bytes` are, waiting where that helps.
size_t oomph_return_device(oomph_device_t *device, size_t bytes);
// Unmaps and releases pages whose work has finished, up to `bytes`.
size_t oomph_release_passed(oomph_device_t *device, const oomph_reach_t *reach,
                            size_t bytes);
