/* allocation.h - memory that is reserved, made and mapped in one go: for cuMemAlloc and
 * cuMemAllocAsync. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/memory/device.h"
#include "libcuda/memory/space.h"

// What an allocation takes of its device: small ones of cuMemAlloc share pages, those
// of a pool all do.
uint64_t sim_memory_charge(size_t bytes);
uint64_t sim_memory_pool_charge(size_t bytes);

// Errors: OUT_OF_MEMORY, OPERATING_SYSTEM.
CUresult sim_memory_allocate(CUcontext context, size_t bytes, uint64_t charged_bytes,
                             sim_reservation_t **allocation);

// The allocation that starts at an address, or NULL.
sim_reservation_t *sim_memory_find(CUdeviceptr addr);

// Maps memory as an allocation of the context at an address of its own, and takes it
// away again. Errors: OUT_OF_MEMORY, OPERATING_SYSTEM.
CUresult sim_memory_place(CUcontext context, sim_handle_t *handle,
                          sim_reservation_t **allocation);
void sim_memory_unplace(sim_reservation_t *allocation);

// Memory that a captured allocation gives at every launch. It exists, at one address,
// as long as a graph allocates it or the last launch left it in use.
void sim_memory_graph_hold(uint64_t addr);
void sim_memory_graph_unhold(uint64_t addr);
void sim_memory_graph_use(uint64_t addr, bool is_used);

// Frees what was allocated in the context; managed memory leaves for the host.
void sim_memory_free_all(CUcontext context);
