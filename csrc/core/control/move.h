/* move.h - moving blocks in use between device and host. */
#pragma once
#include "core/device/device.h"

// What is moved of the blocks that are named.
typedef struct oomph_move_limits {
    size_t most_bytes; // of pages: as many blocks, in their order, as fit
    bool idle_only;    // only pages of blocks that are idle between steps, or of none
    bool wished;       // their user wants it: they do not return by themselves
} oomph_move_limits_t;

// oomph_move() for the holder of the lock, who gives it up for a while. Errors:
// OOMPH_ERR_STATE (a stream captures, or no host pages that can be mapped),
// OOMPH_ERR_NO_MEMORY (pages, or host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_move_blocks(oomph_device_t *device, oomph_tier_t tier,
                                 oomph_move_t *moves, size_t count,
                                 oomph_move_limits_t limits, size_t *moved_bytes);
