/* memory.c - cuMemAlloc: memory that is reserved, made and mapped in one go. */
#include "libcuda/api/call.h"
#include "libcuda/engine/wait.h"
#include "libcuda/memory/allocation.h"
#include "libcuda/memory/device.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"

static CUresult allocate_plain(CUdeviceptr *addr, size_t bytes)
{
    CUcontext context;
    sim_reservation_t *allocation;

    if (addr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result =
            sim_memory_allocate(context, bytes, sim_memory_charge(bytes), &allocation);
    if (result == CUDA_SUCCESS)
        *addr = allocation->range.base;
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *addr, size_t bytes)
{
    CUresult result = sim_enter("cuMemAlloc_v2");

    if (result == CUDA_SUCCESS)
        result = allocate_plain(addr, bytes);
    return sim_leave(result, "%#llx, %zu", result == CUDA_SUCCESS ? *addr : 0, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *addr, size_t *pitch, size_t width,
                            size_t height, unsigned element_bytes)
{
    const size_t alignment = 512;
    CUresult result = sim_enter("cuMemAllocPitch_v2");

    if (result == CUDA_SUCCESS && pitch == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *pitch = (width + alignment - 1) / alignment * alignment;
        result = allocate_plain(addr, *pitch * height);
    }
    return sim_leave(result, "%zu, %zu, %u", width, height, element_bytes);
}

static CUresult free_plain(CUdeviceptr addr)
{
    sim_reservation_t *allocation = sim_memory_find(addr);
    CUresult result;

    if (addr == 0)
        return CUDA_SUCCESS;
    if (allocation == NULL || allocation->open_count > 0)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%#llx was not allocated, or freed before", addr);
    if (allocation->owner->sticky != CUDA_SUCCESS)
        return allocation->owner->sticky;
    result = sim_capture_forbid();
    if (result != CUDA_SUCCESS)
        return result;
    sim_queue_wait_for_context(allocation->owner); // as the real one does
    if (sim_memory_find(addr) != allocation)       // the lock was given away meanwhile
        return CUDA_ERROR_INVALID_VALUE;
    sim_memory_unplace(allocation);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr addr)
{
    CUresult result = sim_enter("cuMemFree_v2");

    if (result == CUDA_SUCCESS)
        result = free_plain(addr);
    return sim_leave(result, "%#llx", addr);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    CUresult result = sim_enter("cuMemGetInfo_v2");

    if (result == CUDA_SUCCESS && (free_bytes == NULL || total_bytes == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS) {
        sim_handle_collect();
        *free_bytes = sim_device_free_bytes(context);
        *total_bytes = sim_config.capacity_bytes;
    }
    return sim_return(result);
}
