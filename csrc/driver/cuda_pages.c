#include "driver/cuda_pages.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static int numa_nodes[OOMPH_DEVICE_MAX];
static bool can_export[OOMPH_DEVICE_MAX]; // whether pages can be named by descriptors
static bool for_rdma[OOMPH_DEVICE_MAX];   // whether network cards may use pages
static _Atomic(CUmemLocationType) host_location = CU_MEM_LOCATION_TYPE_HOST_NUMA;

/* ---- What pages there are */

static CUmemAllocationProp properties(int device, oomph_tier_t tier,
                                      oomph_host_kind_t kind)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

    // Which pages will be exported is not known when they are made.
    if (tier == OOMPH_TIER_DEVICE && can_export[device])
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable =
        tier == OOMPH_TIER_DEVICE && for_rdma[device];
    if (tier == OOMPH_TIER_DEVICE)
        prop.location =
            (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    else if (kind == OOMPH_HOST_NUMA)
        prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                        .id = numa_nodes[device]};
    else
        prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
    return prop;
}

// One thing less is asked for. False: there is nothing left to do without.
static bool ask_less(CUmemAllocationProp *prop)
{
    if (prop->allocFlags.gpuDirectRDMACapable != 0)
        prop->allocFlags.gpuDirectRDMACapable = 0;
    else if (prop->requestedHandleTypes != 0)
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    else
        return false;
    return true;
}

static size_t granularity(const CUmemAllocationProp *prop)
{
    size_t bytes = 0;

    if (oomph_cu.cuMemGetAllocationGranularity(
            &bytes, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return 0;
    return bytes;
}

// Makes and maps a page: some platforms refuse what their attributes promise, be it
// when memory is made or (WSL 2) when it is to be used.
static CUresult try_page(const CUmemAllocationProp *prop, size_t bytes)
{
    CUmemAccessDesc access = {.location = prop->location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;

    CUresult result = oomph_cu.cuMemCreate(&handle, bytes, prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = oomph_cu.cuMemAddressReserve(&addr, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        goto undo_handle;
    result = oomph_cu.cuMemMap(addr, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS)
        goto undo_addr;
    result = oomph_cu.cuMemSetAccess(addr, bytes, &access, 1);
    oomph_cu.cuMemUnmap(addr, bytes);
undo_addr:
    oomph_cu.cuMemAddressFree(addr, bytes);
undo_handle:
    oomph_cu.cuMemRelease(handle);
    return result;
}

static bool is_refused(const CUmemAllocationProp *prop)
{
    size_t bytes = granularity(prop);
    CUresult result = bytes == 0 ? CUDA_ERROR_NOT_SUPPORTED : try_page(prop, bytes);

    return result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
}

// Finds what pages may be asked for.
static void settle(int device, CUdevice handle)
{
    int node = oomph_cuda_attribute(handle, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
    int descriptors = oomph_cuda_attribute(
        handle, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
    int rdma = oomph_cuda_attribute(
        handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0);

    numa_nodes[device] = node < 0 ? 0 : node;
    can_export[device] = descriptors != 0;
    for_rdma[device] = rdma != 0;
    CUmemAllocationProp prop = properties(device, OOMPH_TIER_DEVICE, OOMPH_HOST_AUTO);
    CUstreamCaptureMode mode = oomph_cuda_relax();

    while (is_refused(&prop) && ask_less(&prop))
        continue;
    oomph_cuda_restore(mode, CUDA_SUCCESS, "");
    for_rdma[device] = prop.allocFlags.gpuDirectRDMACapable != 0;
    can_export[device] = prop.requestedHandleTypes != 0;
}

size_t oomph_cuda_page_bytes(int device, CUdevice handle)
{
    settle(device, handle);
    CUmemAllocationProp host = properties(device, OOMPH_TIER_HOST, OOMPH_HOST_NUMA);
    CUmemAllocationProp prop = properties(device, OOMPH_TIER_DEVICE, OOMPH_HOST_AUTO);
    size_t bytes = granularity(&prop);

    return bytes == 0 ? 0 : oomph_max(bytes, granularity(&host));
}

/* ---- Address space and pages */

oomph_status_t oomph_cuda_reserve(size_t bytes, size_t alignment, oomph_addr_t *addr)
{
    CUdeviceptr pointer = 0;
    CUstreamCaptureMode mode = oomph_cuda_relax();

    oomph_status_t status = oomph_cuda_restore(
        mode, oomph_cu.cuMemAddressReserve(&pointer, bytes, alignment, 0, 0),
        "cuMemAddressReserve");
    if (status == OOMPH_OK)
        *addr = pointer;
    return status;
}

oomph_status_t oomph_cuda_unreserve(oomph_addr_t addr, size_t bytes)
{
    CUstreamCaptureMode mode = oomph_cuda_relax();

    return oomph_cuda_restore(mode,
                              oomph_cuda_undone(oomph_cu.cuMemAddressFree(addr, bytes)),
                              "cuMemAddressFree");
}

// Some drivers crash when asked for pages of a node that does not exist.
static bool has_node(int node)
{
    char path[64];

    snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
    return access(path, F_OK) == 0;
}

oomph_status_t oomph_cuda_create(int device, oomph_tier_t tier, oomph_host_kind_t kind,
                                 size_t bytes, oomph_handle_t *handle)
{
    CUmemAllocationProp prop = properties(device, tier, kind);
    CUmemGenericAllocationHandle made = 0;

    if (prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
        !has_node(prop.location.id))
        return oomph_fail(OOMPH_ERR_DRIVER, "there is no NUMA node %d",
                          prop.location.id);
    CUstreamCaptureMode mode = oomph_cuda_relax();

    oomph_status_t status = oomph_cuda_restore(
        mode, oomph_cu.cuMemCreate(&made, bytes, &prop, 0), "cuMemCreate");
    if (status != OOMPH_OK)
        return status;
    if (tier == OOMPH_TIER_HOST)
        atomic_store(&host_location, prop.location.type);
    *handle = made;
    return OOMPH_OK;
}

oomph_status_t oomph_cuda_release(oomph_handle_t handle)
{
    CUstreamCaptureMode mode = oomph_cuda_relax();

    return oomph_cuda_restore(mode, oomph_cuda_undone(oomph_cu.cuMemRelease(handle)),
                              "cuMemRelease");
}

oomph_status_t oomph_cuda_map(oomph_addr_t addr, size_t bytes, oomph_handle_t handle)
{
    CUstreamCaptureMode mode = oomph_cuda_relax();

    return oomph_cuda_restore(mode, oomph_cu.cuMemMap(addr, bytes, 0, handle, 0),
                              "cuMemMap");
}

oomph_status_t oomph_cuda_unmap(oomph_addr_t addr, size_t bytes)
{
    CUstreamCaptureMode mode = oomph_cuda_relax();

    return oomph_cuda_restore(mode, oomph_cuda_undone(oomph_cu.cuMemUnmap(addr, bytes)),
                              "cuMemUnmap");
}

oomph_status_t oomph_cuda_set_access(oomph_addr_t addr, size_t bytes, uint64_t devices,
                                     bool cpu)
{
    CUmemAccessDesc desc[OOMPH_DEVICE_MAX + 1];
    size_t count = 0;

    for (int device = 0; device < OOMPH_DEVICE_MAX; device++)
        if (devices >> device & 1)
            desc[count++].location =
                (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    if (cpu)
        desc[count++].location = (CUmemLocation){.type = atomic_load(&host_location)};
    for (size_t i = 0; i < count; i++)
        desc[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUstreamCaptureMode mode = oomph_cuda_relax();

    return oomph_cuda_restore(mode, oomph_cu.cuMemSetAccess(addr, bytes, desc, count),
                              "cuMemSetAccess");
}

/* ---- Other processes */

oomph_status_t oomph_cuda_export_page(int device, oomph_handle_t handle,
                                      int *descriptor)
{
    int made = -1;

    if (!can_export[device])
        return oomph_fail(
            OOMPH_ERR_DRIVER,
            "the driver makes no memory of device %d that other processes "
            "can use: share the tensor on the CPU",
            device);
    CUstreamCaptureMode mode = oomph_cuda_relax();

    oomph_status_t status = oomph_cuda_restore(
        mode,
        oomph_cu.cuMemExportToShareableHandle(
            &made, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
    if (status == OOMPH_OK) {
        fcntl(made, F_SETFD, FD_CLOEXEC);
        *descriptor = made;
    }
    return status;
}

oomph_status_t oomph_cuda_import_page(int descriptor, oomph_handle_t *handle)
{
    CUmemGenericAllocationHandle made = 0;
    CUstreamCaptureMode mode = oomph_cuda_relax();

    oomph_status_t status =
        oomph_cuda_restore(mode,
                           oomph_cu.cuMemImportFromShareableHandle(
                               &made, (void *)(intptr_t)descriptor,
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                           "cuMemImportFromShareableHandle");
    if (status == OOMPH_OK)
        *handle = made;
    return status;
}

/* ---- Page-locked blocks */

oomph_status_t oomph_cuda_pinned_free(int device, oomph_addr_t addr)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(
            oomph_cuda_undone(oomph_cu.cuMemFreeHost((void *)(uintptr_t)addr)),
            "cuMemFreeHost");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_pinned_alloc(int device, size_t bytes, oomph_addr_t *addr)
{
    void *host = NULL;
    CUdeviceptr pointer = 0;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(
            oomph_cu.cuMemHostAlloc(
                &host, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
            "cuMemHostAlloc");
    if (scope.status != OOMPH_OK)
        return oomph_cuda_leave(&scope);
    scope.status =
        oomph_cuda_check(oomph_cu.cuMemHostGetDevicePointer(&pointer, host, 0),
                         "cuMemHostGetDevicePointer");
    if (scope.status == OOMPH_OK && pointer != (CUdeviceptr)(uintptr_t)host)
        scope.status = oomph_fail(
            OOMPH_ERR_DRIVER, "page-locked memory has another address on the device");
    if (scope.status == OOMPH_OK)
        *addr = pointer;
    else
        oomph_cu.cuMemFreeHost(host);
    return oomph_cuda_leave(&scope);
}
