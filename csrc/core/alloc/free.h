/* free.h - frees: those that were queued while others had the lock, and those that wait
 * for streams.
 */
#pragma once
#include "core/device/sync.h"

// Processes the frees that were queued since. True if there were any.
bool oomph_drain_queue(oomph_device_t *device);
// Takes the lock and processes the frees that were queued.
static inline void oomph_enter(oomph_device_t *device)
{
    oomph_lock(device);
    if (!oomph_queue_is_empty(&device->queue))
        oomph_drain_queue(device);
}

// The same for a device that may not be open yet. Errors: as oomph_device_get(); then
// nothing is locked.
oomph_status_t oomph_enter_device(int ordinal, oomph_device_t **device);
// The same for a device that is open; else gives NULL, and nothing is locked.
oomph_device_t *oomph_enter_open(int ordinal);
// Processes these and frees what was deferred and has finished. True if there was any.
bool oomph_collect(oomph_device_t *device);
// Frees the oldest deferred buffer of the pool that an earlier step freed, before
// others are done with it: from now on the pool's stream waits for them on the device.
// False if there is none. (To wait for a copy of this step would hold up others beside
// it.)
bool oomph_overtake(oomph_device_t *device, const oomph_pool_t *pool);
