/* pinned.h - host memory that devices may use: allocated by the driver, or registered.
 * The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/memory/device.h"
#include "libcuda/memory/ranges.h"

typedef struct sim_pinned {
    sim_range_t range;
    CUcontext context;  // in which it was allocated or registered
    bool is_registered; // its bytes belong to the program
    unsigned flags;
    uint64_t buffer_id;
} sim_pinned_t;

// The pinned buffer at an address, or NULL.
sim_pinned_t *sim_pinned_find(uint64_t addr);

void sim_pinned_reset(void);
