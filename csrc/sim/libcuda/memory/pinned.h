/* pinned.h - host memory that devices may use: allocated by the driver, registered, or
 * managed, which the driver moves to a device and back.
 * The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/ranges.h"
#include "libcuda/memory/device.h"

typedef enum sim_pinned_kind {
    SIM_PINNED_ALLOCATED,
    SIM_PINNED_REGISTERED, // its bytes belong to the program
    SIM_PINNED_MANAGED,
} sim_pinned_kind_t;

typedef struct sim_pinned {
    sim_range_t range;
    CUcontext context; // in which it was allocated or registered
    sim_pinned_kind_t kind;
    unsigned flags;
    uint64_t buffer_id;
    sim_guest_t guest; // if it is managed
} sim_pinned_t;

// The pinned buffer at an address, or NULL.
sim_pinned_t *sim_pinned_find(uint64_t addr);

// Whether any overlaps `bytes` at `addr`.
bool sim_pinned_overlaps(uint64_t addr, uint64_t bytes);

// Remembers a buffer and takes its bytes from the host's memory. Errors: OUT_OF_MEMORY.
CUresult sim_pinned_add(CUcontext context, void *place, size_t bytes,
                        sim_pinned_kind_t kind, unsigned flags);
// The same with bytes of the driver's own. Errors: OUT_OF_MEMORY.
CUresult sim_pinned_allocate(CUcontext context, size_t bytes, sim_pinned_kind_t kind,
                             unsigned flags, void **place);
// Forgets it, and gives back what the driver allocated.
void sim_pinned_remove(sim_pinned_t *buffer);

void sim_pinned_reset(void);
