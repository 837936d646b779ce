/* sync.h - the lock of a device, and waiting for the GPU without it. */
#pragma once
#include "core/device/device.h"

// Takes the lock. What others queued to be freed meanwhile stays queued: oomph_enter().
static inline void oomph_lock(oomph_device_t *device)
{
    oomph_lock_take(&device->lock);
}

// Gives the lock up and reports what happened under it.
OOMPH_COLD void oomph_unlock_and_report(oomph_device_t *device);
// The same; nearly always there is nothing to report.
static inline void oomph_unlock(oomph_device_t *device)
{
    if (device->pages.notices.count == 0)
        oomph_lock_give(&device->lock);
    else
        oomph_unlock_and_report(device);
}

// Waits for the clock's oldest epoch, or for all work of the device (NULL), giving up
// the lock meanwhile. False if there was nothing to wait for, or it must not be waited
// for.
bool oomph_wait_for(oomph_device_t *device, oomph_clock_t *clock);
// The same for the oldest epoch of the device: the free pages longest in use.
static inline bool oomph_wait_for_pages(oomph_device_t *device)
{
    return oomph_wait_for(device, &device->streams.clock);
}
// Waits until all has finished that was queued on the device, and on others that have
// access to its pages, giving up the lock meanwhile. Errors: OOMPH_ERR_STATE (a stream
// captures), OOMPH_ERR_DRIVER.
oomph_status_t oomph_drain(oomph_device_t *device);

// For what is slow and needs neither lock nor GIL: gives both up, and takes them again.
void *oomph_step_aside(oomph_device_t *device);
void oomph_step_back(oomph_device_t *device, void *state);
