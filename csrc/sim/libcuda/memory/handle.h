/* handle.h - physical memory, on a device or on the host: created, referred to by
 * handles and mappings, freed when the last of them goes. The caller holds the driver's
 * lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "libcuda/base/slab.h"
#include "libcuda/memory/address.h"

typedef struct sim_handle {
    sim_object_t object;
    CUmemAllocationProp prop;
    uint64_t bytes;
    uint64_t charged_bytes;   // of the device's or the host's memory; usually the same
    sim_bytes_t bytes_at;     // of its bytes, where memory is real
    uint64_t label;           // says what it is to other processes (foreign.h); 0: none
    uint64_t block_id;        // unique among all physical memory ever made
    uint32_t reference_count; // handles that the program holds
    uint32_t mapping_count;
} sim_handle_t;

// Makes physical memory with one reference. `bytes` is a multiple of SIM_PAGE; less may
// be charged for what shares its pages with others. Errors: OUT_OF_MEMORY.
CUresult sim_handle_create(const CUmemAllocationProp *prop, uint64_t bytes,
                           uint64_t charged_bytes, sim_handle_t **handle);

// What the program gets for a handle, and back; NULL if it names none with references.
CUmemGenericAllocationHandle sim_handle_value(const sim_handle_t *handle);
sim_handle_t *sim_handle_find(CUmemGenericAllocationHandle value);

// The memory that had this value, with one reference more: even if this process has
// none left but others do. NULL if it is gone.
sim_handle_t *sim_handle_reference(CUmemGenericAllocationHandle value);

// Memory of another process: found, or entered with one reference. NULL if there is
// none, or no host memory.
sim_handle_t *sim_handle_find_imported(const sim_bytes_t *bytes_at, uint64_t label);
sim_handle_t *sim_handle_adopt(int device, uint64_t bytes, const sim_bytes_t *bytes_at,
                               uint64_t label);

// Frees memory that other processes have given up since this one did.
void sim_handle_collect(void);

void sim_handle_unreference(sim_handle_t *handle);
void sim_handle_map(sim_handle_t *handle);
void sim_handle_unmap(sim_handle_t *handle);

bool sim_handle_is_on_host(const sim_handle_t *handle);

uint64_t sim_handle_count(void);

void sim_handle_reset(void);
