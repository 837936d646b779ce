/* pool.c - memory pools. A device has one, which keeps nothing: what is freed is at
 * once the device's again. Of its settings only the high-water marks have an effect;
 * the release threshold is told as it was set.
 */
#include "libcuda/memory/memory.h"
#include "libcuda/session/call.h"

#include <stddef.h>

static CUresult default_pool(CUmemoryPool *pool, CUdevice device)
{
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_device(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = (CUmemoryPool)(void *)sim_device(device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceGetDefaultMemPool");

    if (result == CUDA_SUCCESS)
        result = default_pool(pool, device);
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceGetMemPool");

    if (result == CUDA_SUCCESS)
        result = default_pool(pool, device);
    return sim_leave(result, "%d", device);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    CUresult result = sim_enter("cuMemPoolTrimTo");

    if (result == CUDA_SUCCESS && pool == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    return sim_leave(result, "%p, %zu", (void *)pool, keep_bytes);
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
    CUresult result = sim_enter("cuMemPoolSetAttribute");

    if (result == CUDA_SUCCESS && (pool == NULL || value == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = set_attribute(sim_pool_device(pool), attribute, value);
    return sim_leave(result, "%p, %d", (void *)pool, (int)attribute);
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
    CUresult result = sim_enter("cuMemPoolGetAttribute");

    if (result == CUDA_SUCCESS && (pool == NULL || value == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = get_attribute(sim_pool_device(pool), attribute, value);
    return sim_leave(result, "%p, %d", (void *)pool, (int)attribute);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                            size_t count)
{
    CUresult result = sim_enter("cuMemPoolSetAccess");

    if (result == CUDA_SUCCESS && (pool == NULL || (access == NULL && count > 0)))
        result = CUDA_ERROR_INVALID_VALUE;
    return sim_leave(result, "%p, %zu", (void *)pool, count);
}
