/* pinned.h - host memory that devices may use: allocated by the driver, or registered.
 * The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/ranges.h"
#include "libcuda/memory/device.h"

typedef struct sim_pinned {
    sim_range_t range;
    CUcontext context;  // in which it was allocated or registered
    bool is_registered; // its bytes belong to the program
    unsigned flags;
    uint64_t buffer_id;
} sim_pinned_t;

// The pinned buffer at an address, or NULL.
sim_pinned_t *sim_pinned_find(uint64_t addr);

// Whether any overlaps `bytes` at `addr`.
bool sim_pinned_overlaps(uint64_t addr, uint64_t bytes);

// Remembers a buffer and takes its bytes from the host's memory. Errors: OUT_OF_MEMORY.
CUresult sim_pinned_add(CUcontext context, void *place, size_t bytes,
                        bool is_registered, unsigned flags);
// Forgets it, and gives back what the driver allocated.
void sim_pinned_remove(sim_pinned_t *buffer);

void sim_pinned_reset(void);
