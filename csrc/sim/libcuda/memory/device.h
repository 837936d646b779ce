/* device.h - the simulated devices, each with its primary context, and what is taken of
 * their memory and of the host's. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

// Managed memory that is on a device; it leaves when its place is needed.
typedef struct sim_guest {
    CUcontext context; // where it is; NULL: on the host
    struct sim_guest *next;
    uint64_t bytes;
} sim_guest_t;

// A device and its primary context, the only context that it has.
struct CUctx_st {
    int device;
    uint64_t used_bytes; // device memory, without the context's own
    sim_guest_t *guests; // part of it; the one that came first leaves first
    uint64_t peak_used_bytes;
    uint64_t pooled_bytes; // part of used_bytes: what cuMemAllocAsync gave out
    uint64_t peak_pooled_bytes;
    uint64_t pool_release_threshold; // bytes; without effect
    unsigned retain_count;           // 0: the context is not active
    unsigned flags;
    unsigned peers;          // bit per device: peer access enabled
    CUresult sticky;         // the error that has broken the context
    CUstream default_stream; // the legacy one; exists while the context is active
    CUstream joint_stream;   // waits for all others (cuCtxRecordEvent); NULL: not made
    uint64_t blocking_pending_count; // operations of its other blocking streams
};

// The device, or NULL if there is none with this number.
CUcontext sim_device(int device);

// Takes device memory; false when it is exhausted.
bool sim_device_take(CUcontext context, uint64_t bytes);
void sim_device_give(CUcontext context, uint64_t bytes);

// Has managed memory come, for which other guests leave; if that is not enough, it
// stays where it is. And has it leave for the host. Both say whether it moved.
bool sim_device_welcome(CUcontext context, sim_guest_t *guest);
bool sim_device_dismiss(sim_guest_t *guest);

// Device memory that is free, after what the context takes.
uint64_t sim_device_free_bytes(const struct CUctx_st *context);

// Host memory that the driver holds, all within the card's host=.
typedef enum sim_host_memory {
    SIM_HOST_LOCATED, // pages of cuMemCreate
    SIM_HOST_PINNED,
    SIM_HOST_MANAGED, // also what is on a device: it may come back at any time
    SIM_HOST_KINDS,
} sim_host_memory_t;

bool sim_host_take(sim_host_memory_t kind, uint64_t bytes);
void sim_host_give(sim_host_memory_t kind, uint64_t bytes);
uint64_t sim_host_used_bytes(sim_host_memory_t kind);
uint64_t sim_host_peak_bytes(sim_host_memory_t kind);

void sim_device_reset(void);
