/* physical.c - the driver calls of virtual memory management that make physical memory,
 * give it back and say what it is; vmm.c maps it.
 */
#include "libcuda/execution/call.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/device.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"

// Whether memory of these properties can exist on the simulated card.
static CUresult check_properties(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_config.has_vmm ||
        (prop->requestedHandleTypes != 0 && sim_config.share != SIM_OFFER_YES))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_PERMITTED; // as without a fabric manager
    if (prop->allocFlags.gpuDirectRDMACapable != 0 && sim_config.rdma == SIM_OFFER_NO)
        return CUDA_ERROR_INVALID_VALUE; // the device says that it cannot
    switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_device(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
        if (sim_config.host_pages == SIM_HOST_PAGES_NONE)
            return CUDA_ERROR_NOT_SUPPORTED;
        return prop->requestedHandleTypes == 0 ? CUDA_SUCCESS
                                               : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (sim_config.host_pages != SIM_HOST_PAGES_NUMA)
            return CUDA_ERROR_NOT_SUPPORTED;
        return prop->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: // HOST_NUMA_CURRENT too: it is for pools
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result = sim_enter_checked(__func__, bytes != NULL);

    if (result == CUDA_SUCCESS)
        result = check_properties(prop);
    if (result == CUDA_SUCCESS)
        *bytes = SIM_PAGE;
    return sim_leave(result, "%d", (int)option);
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    sim_handle_t *handle;

    if (out == NULL || prop == NULL || flags != 0 || bytes == 0 ||
        bytes % SIM_PAGE != 0)
        return sim_misuse(
            CUDA_ERROR_INVALID_VALUE,
            "%zu bytes is not a multiple of 2 MiB, or another argument is "
            "not allowed",
            bytes);
    CUresult result = check_properties(prop);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sim_misuse(result, "no memory has these properties (location %d:%d)",
                          (int)prop->location.type, prop->location.id);
    if (result == CUDA_SUCCESS)
        result = sim_handle_create(prop, bytes, bytes, &handle);
    if (result == CUDA_SUCCESS)
        *out = sim_handle_value(handle);
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    return SIM_CALL(create(handle, bytes, prop, flags), "%#llx, %zu, %d:%d",
                    result == CUDA_SUCCESS ? *handle : 0, bytes,
                    prop ? (int)prop->location.type : -1,
                    prop ? prop->location.id : -1);
}

static CUresult release(CUmemGenericAllocationHandle value)
{
    sim_handle_t *handle = sim_handle_find(value);

    if (handle == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "handle %#llx does not exist or was released before", value);
    CUresult result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        sim_handle_unreference(handle);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return SIM_CALL(release(handle), "%#llx", handle);
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *addr)
{
    sim_mapping_t *mapping = sim_space_mapping((uint64_t)(uintptr_t)addr);

    if (handle == NULL || mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    mapping->handle->reference_count++;
    *handle = sim_handle_value(mapping->handle);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    return SIM_CALL(retain(handle, addr), "%p", addr);
}

static CUresult properties(CUmemAllocationProp *prop,
                           CUmemGenericAllocationHandle value)
{
    const sim_handle_t *handle = sim_handle_find(value);

    if (prop == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE, "handle %#llx does not exist",
                          value);
    *prop = handle->prop;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle value)
{
    return SIM_CALL(properties(prop, value), "%#llx", value);
}
