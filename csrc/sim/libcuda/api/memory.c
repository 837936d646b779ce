/* memory.c - memory of devices that is reserved, made and mapped in one go: by
 * cuMemAlloc, and in the order of streams (cuMemAllocAsync) from pools.
 *
 * A device has one pool, which keeps nothing: what is freed is at once the device's
 * again. Of its settings only the high-water marks have an effect; the release
 * threshold is given as it was set.
 */
#include "libcuda/engine/submit.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/memory/allocation.h"
#include "libcuda/memory/device.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/pinned.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/objects/work.h"
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
    return SIM_CALL(allocate_plain(addr, bytes), "%#llx, %zu",
                    result == CUDA_SUCCESS ? *addr : 0, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *addr, size_t *pitch, size_t width,
                            size_t height, unsigned element_bytes)
{
    const size_t alignment = 512;
    CUresult result = sim_enter_checked(__func__, pitch != NULL);

    if (result == CUDA_SUCCESS) {
        *pitch = (width + alignment - 1) / alignment * alignment;
        result = allocate_plain(addr, *pitch * height);
    }
    return sim_leave(result, "%zu, %zu, %u", width, height, element_bytes);
}

// As the real one it waits for all that its context was given.
static CUresult free_managed(sim_pinned_t *buffer)
{
    const uint64_t base = buffer->range.base;
    CUresult result = sim_capture_forbid();

    if (result != CUDA_SUCCESS)
        return result;
    sim_queue_wait_for_context(buffer->context);
    if (sim_pinned_find(base) != buffer) // the lock was given away meanwhile
        return CUDA_ERROR_INVALID_VALUE;
    sim_pinned_remove(buffer);
    return CUDA_SUCCESS;
}

static CUresult free_plain(CUdeviceptr addr)
{
    sim_reservation_t *allocation = sim_memory_find(addr);
    sim_pinned_t *buffer = sim_pinned_find(addr);
    CUresult result;

    if (addr == 0)
        return CUDA_SUCCESS;
    if (buffer != NULL && buffer->kind == SIM_PINNED_MANAGED &&
        buffer->range.base == addr)
        return free_managed(buffer);
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
    return SIM_CALL(free_plain(addr), "%#llx", addr);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    CUresult result =
        sim_enter_checked(__func__, free_bytes != NULL && total_bytes != NULL);

    if (result == CUDA_SUCCESS)
        result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS) {
        sim_handle_collect();
        *free_bytes = sim_device_free_bytes(context);
        *total_bytes = sim_config.capacity_bytes;
    }
    return sim_return(result);
}

// ---- pools

// The device of a pool. Each has one pool, whose handle is the device's.
static CUcontext device_of(CUmemoryPool pool)
{
    return (CUcontext)(void *)pool;
}

static CUresult get_pool(const char *function, CUmemoryPool *pool, CUdevice device)
{
    CUresult result = sim_enter_checked(function, pool != NULL);

    if (result == CUDA_SUCCESS && sim_device(device) == NULL)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *pool = (CUmemoryPool)(void *)sim_device(device);
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return get_pool(__func__, pool, device);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return get_pool(__func__, pool, device);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    return SIM_CALL(pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, "%p, %zu",
                    (void *)pool, keep_bytes);
}

static CUresult set_attribute(CUcontext device, CUmemPool_attribute attribute,
                              const void *value)
{
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        device->pool_release_threshold = *(const cuuint64_t *)value;
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ||
        attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        device->peak_pooled_bytes = device->pooled_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                               void *value)
{
    return SIM_CALL(pool != NULL && value != NULL
                        ? set_attribute(device_of(pool), attribute, value)
                        : CUDA_ERROR_INVALID_VALUE,
                    "%p, %d", (void *)pool, (int)attribute);
}

static CUresult get_attribute(CUcontext device, CUmemPool_attribute attribute,
                              void *value)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = 1;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = device->pool_release_threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = device->pooled_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = device->peak_pooled_bytes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                               void *value)
{
    return SIM_CALL(pool != NULL && value != NULL
                        ? get_attribute(device_of(pool), attribute, value)
                        : CUDA_ERROR_INVALID_VALUE,
                    "%p, %d", (void *)pool, (int)attribute);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                            size_t count)
{
    return SIM_CALL(pool != NULL && (access != NULL || count == 0)
                        ? CUDA_SUCCESS
                        : CUDA_ERROR_INVALID_VALUE,
                    "%p, %zu", (void *)pool, count);
}

// ---- in the order of streams

// The node that allocates takes over the hold.
static CUresult capture_allocation(sim_reservation_t *allocation, CUstream stream)
{
    const sim_work_t work = {
        .kind = SIM_WORK_GRAPH_ALLOC,
        .call = sim_current_call(),
        .dst = allocation->range.base,
    };

    allocation->graph_count = 1;
    CUresult result = sim_queue_submit(stream, &work, NULL);
    if (result != CUDA_SUCCESS)
        sim_memory_unplace(allocation);
    return result;
}

// The host has no need to wait for pending frees before it takes device memory again;
// only when that is exhausted.
static CUresult allocate_pooled(CUdeviceptr *addr, size_t bytes, CUcontext owner,
                                CUstream handle)
{
    CUstream stream;
    sim_reservation_t *allocation;

    if (addr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = owner != NULL ? owner : stream->context;
    uint64_t charge = sim_memory_pool_charge(bytes); // a pool shares all pages
    result = sim_memory_allocate(context, bytes, charge, &allocation);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        sim_queue_wait_for_context(context);
        result = sim_memory_allocate(context, bytes, charge, &allocation);
    }
    if (result != CUDA_SUCCESS)
        return result;
    allocation->is_pooled = true;
    context->pooled_bytes += charge;
    if (context->pooled_bytes > context->peak_pooled_bytes)
        context->peak_pooled_bytes = context->pooled_bytes;
    *addr = allocation->range.base;
    return stream->capture != NULL ? capture_allocation(allocation, stream)
                                   : CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *addr, size_t bytes, CUstream stream)
{
    return SIM_CALL(allocate_pooled(addr, bytes, NULL, stream), "%#llx, %zu, %p",
                    result == CUDA_SUCCESS ? *addr : 0, bytes, (void *)stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *addr, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
    return SIM_CALL(pool != NULL ? allocate_pooled(addr, bytes, device_of(pool), stream)
                                 : CUDA_ERROR_INVALID_VALUE,
                    "%#llx, %zu, %p", result == CUDA_SUCCESS ? *addr : 0, bytes,
                    (void *)stream);
}

static CUresult free_in_order(CUdeviceptr addr, CUstream handle)
{
    CUstream stream;
    sim_work_t work = {.kind = SIM_WORK_FREE, .call = "cuMemFreeAsync", .dst = addr};
    CUresult result = sim_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    const sim_reservation_t *allocation = sim_memory_find(addr);
    if (allocation == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%#llx was not allocated, or freed before", addr);
    if (stream->capture != NULL && allocation->graph_count == 0)
        return sim_capture_refuse(stream); // a graph frees what a graph allocated
    if (stream->capture != NULL)
        work.kind = SIM_WORK_GRAPH_FREE;
    return sim_queue_submit(stream, &work, NULL);
}

CUresult cuMemFreeAsync(CUdeviceptr addr, CUstream stream)
{
    return SIM_CALL(free_in_order(addr, stream), "%#llx, %p", addr, (void *)stream);
}
