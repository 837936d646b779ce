/* guard.h - use after free, caught. */
#pragma once
#include "core/device/device.h"

// The bytes of a block for a request of the pool, where guard is on.
size_t oomph_guard_bytes(const oomph_device_t *device, oomph_pool_id_t pool,
                         size_t bytes);
// Makes a block that was taken ready to be handed out: gives its uses, to be attached,
// or NULL if it has none. Errors: OOMPH_ERR_NO_MEMORY (host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_guard_admit(oomph_device_t *device, oomph_block_t *block,
                                 const oomph_request_t *request, oomph_uses_t **uses);
// What counts once it is handed out.
void oomph_guard_attach(oomph_device_t *device, oomph_block_t *block,
                        oomph_uses_t *uses);
// Unmaps the guarded ones of blocks that were freed and whose streams are done. Gives
// those that may be released; the others wait again. May give the lock up for a while.
oomph_uses_t *oomph_guard_unmap(oomph_device_t *device, oomph_uses_t *done);
// Fills a block that is being freed. Comes before its pages are stamped.
void oomph_guard_fill(const oomph_device_t *device, const oomph_block_t *block);
// Takes the place of the quick list when guard is on.
void oomph_guard_give(oomph_device_t *device, oomph_block_t *block);
// Waits for the streams of the blocks that were freed. Gives the lock up meanwhile.
void oomph_guard_wait(oomph_device_t *device);
// Address space for `bytes` more in the pool: new, or else the oldest in quarantine.
// New space is of `generous` bytes if that can be had. Errors: OOMPH_ERR_NO_MEMORY
// (address space, host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_guard_extend(oomph_pool_t *pool, size_t bytes, size_t generous);
// Takes over the address space of a segment that is used up; with `need`, also of one
// that has room left and holds nothing. False if it is none.
bool oomph_guard_keep(oomph_device_t *device, oomph_segment_t *segment, bool need);
