/* space.h - the address space of the devices: reservations, what is mapped into them,
 * and who may use it. The caller holds the driver's lock.
 *
 * Each reservation has a table with a slot for every 2 MiB: an address costs a search
 * among the reservations (ranges.h) and one look, however much is mapped.
 */
#pragma once
#include "libcuda/base/ranges.h"
#include "libcuda/memory/handle.h"

// One whole handle at one address.
typedef struct sim_mapping {
    sim_object_t object;
    uint64_t base, bytes;
    sim_handle_t *handle;
    unsigned readers, writers; // bit per device
    bool host_reads, host_writes;
} sim_mapping_t;

typedef struct sim_reservation {
    sim_range_t range;
    sim_mapping_t **slots; // the mapping of each SIM_PAGE, or NULL
    uint64_t mapping_count;
    CUcontext owner;      // of an allocation (cuMemAlloc); NULL: cuMemAddressReserve
    bool is_pooled;       // cuMemAllocAsync
    unsigned graph_count; // graphs, executable or not, that allocate it
    bool is_graph_used;   // since a launch, until it is freed
    unsigned open_count;  // how often cuIpcOpenMemHandle gave it
} sim_reservation_t;

// Reserves a range. NULL if there is no room.
sim_reservation_t *sim_space_reserve(uint64_t bytes, uint64_t alignment);
// Nothing may be mapped in it.
void sim_space_unreserve(sim_reservation_t *reservation);

// The reservation and the mapping at an address, or NULL.
sim_reservation_t *sim_space_find(uint64_t addr);
sim_mapping_t *sim_space_mapping(uint64_t addr);

// The device that the bytes at an address lie on; SIM_ON_HOST: the host's own, pinned
// or host-located pages.
enum { SIM_ON_HOST = -1 };
int sim_space_place(uint64_t addr);

// Whether the bytes at an accessible address exist: the host's own always do.
bool sim_space_has_bytes(uint64_t addr);

// As sim_bytes_unwritten and sim_bytes_written, of bytes that exist; the host's own may
// all have been written.
uint64_t sim_space_unwritten(uint64_t addr, uint64_t bytes);
uint64_t sim_space_written(uint64_t addr, uint64_t bytes);

// Maps the first `bytes` of a handle, without access. Errors: OUT_OF_MEMORY, and
// OPERATING_SYSTEM if the host has no more mappings.
CUresult sim_space_map(sim_reservation_t *reservation, uint64_t addr, uint64_t bytes,
                       sim_handle_t *handle);
CUresult sim_space_unmap(sim_reservation_t *reservation, sim_mapping_t *mapping);

// Gives one device (or, with device -1, the host) the access that `flags` say.
CUresult sim_space_allow(sim_mapping_t *mapping, int device, CUmemAccess_flags flags);

// What became of a check of a range.
typedef enum sim_check {
    SIM_CHECK_OUTSIDE, // not the devices' memory: the host's own
    SIM_CHECK_GOOD,
    SIM_CHECK_NOT_MAPPED,
    SIM_CHECK_NO_ACCESS,
} sim_check_t;

// Whether `device` may read (or write) `bytes` at `addr`. `bad` is where it may not.
sim_check_t sim_space_check(uint64_t addr, uint64_t bytes, int device, bool write,
                            uint64_t *bad);

// Reservations by address: NULL past the last.
sim_reservation_t *sim_space_at(size_t place);

uint64_t sim_space_mapping_count(void);
size_t sim_space_reservation_count(void);

void sim_space_reset(void);
