/* driver_cuda.c - the driver table (driver.h) over libcuda, NVIDIA's or the simulated.
 *
 * The only file of the core that names CUDA. The library is loaded by dlopen, so that a
 * machine without a driver can import the package; each function is asked for with the
 * version that its prototype belongs to, since later ones differ.
 */
#include "driver.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DRIVER_MIN = 12000 }; // CUDA 12.0: cuStreamGetId, host pages from 12.2

// Every function that is used, with the version of its prototype.
#define FUNCTIONS(X)                                                                   \
    X(cuInit, 2000)                                                                    \
    X(cuDeviceGetCount, 2000)                                                          \
    X(cuDeviceGet, 2000)                                                               \
    X(cuDeviceGetAttribute, 2000)                                                      \
    X(cuDeviceTotalMem, 3020)                                                          \
    X(cuDevicePrimaryCtxRetain, 7000)                                                  \
    X(cuCtxGetCurrent, 4000)                                                           \
    X(cuCtxSetCurrent, 4000)                                                           \
    X(cuCtxSynchronize, 2000)                                                          \
    X(cuThreadExchangeStreamCaptureMode, 10010)                                        \
    X(cuMemGetInfo, 3020)                                                              \
    X(cuMemGetAllocationGranularity, 10020)                                            \
    X(cuMemAddressReserve, 10020)                                                      \
    X(cuMemAddressFree, 10020)                                                         \
    X(cuMemCreate, 10020)                                                              \
    X(cuMemRelease, 10020)                                                             \
    X(cuMemMap, 10020)                                                                 \
    X(cuMemUnmap, 10020)                                                               \
    X(cuMemSetAccess, 10020)                                                           \
    X(cuMemExportToShareableHandle, 10020)                                             \
    X(cuMemImportFromShareableHandle, 10020)                                           \
    X(cuMemHostAlloc, 2020)                                                            \
    X(cuMemFreeHost, 2000)                                                             \
    X(cuMemHostGetDevicePointer, 3020)                                                 \
    X(cuMemcpyAsync, 4000)                                                             \
    X(cuDeviceGetDefaultMemPool, 11020)                                                \
    X(cuMemPoolTrimTo, 11020)                                                          \
    X(cuStreamCreate, 2000)                                                            \
    X(cuStreamDestroy, 4000)                                                           \
    X(cuStreamGetId, 12000)                                                            \
    X(cuStreamSynchronize, 2000)                                                       \
    X(cuStreamIsCapturing, 10000)                                                      \
    X(cuEventCreate, 2000)                                                             \
    X(cuEventDestroy, 4000)                                                            \
    X(cuEventRecord, 2000)                                                             \
    X(cuEventQuery, 2000)                                                              \
    X(cuEventSynchronize, 2000)                                                        \
    X(cuEventElapsedTime, 2000)                                                        \
    X(cuGetErrorName, 6000)                                                            \
    X(cuGetErrorString, 6000)

#define FIELD(name, version) PFN_##name##_v##version name;
static struct {
    FUNCTIONS(FIELD)
} cu;
#undef FIELD

static CUcontext contexts[OOMPH_DEVICE_MAX];
static int numa_nodes[OOMPH_DEVICE_MAX];
static bool can_export[OOMPH_DEVICE_MAX]; // whether pages can be named by descriptors
static _Atomic(CUmemLocationType) host_location = CU_MEM_LOCATION_TYPE_HOST_NUMA;

/* ---- Loading */

static oomph_status_t find_functions(void *library)
{
    PFN_cuGetProcAddress_v12000 lookup;
    CUdriverProcAddressQueryResult found;
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    if (symbol == NULL)
        return oomph_fail(
            OOMPH_ERR_DRIVER,
            "the CUDA driver is too old: oomph needs one for CUDA 12.0 or "
            "newer (525.60 or newer)");
    memcpy(&lookup, &symbol, sizeof lookup);

#define FIND(name, version)                                                            \
    if (lookup(#name, &symbol, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) !=  \
            CUDA_SUCCESS ||                                                            \
        symbol == NULL)                                                                \
        return oomph_fail(OOMPH_ERR_DRIVER, "the CUDA driver has no " #name);          \
    memcpy(&cu.name, &symbol, sizeof symbol);
    FUNCTIONS(FIND)
#undef FIND
    return OOMPH_OK;
}

// The one place where a CUresult becomes a status.
static oomph_status_t check(CUresult result, const char *call)
{
    const char *name = NULL, *text = NULL;

    if (result == CUDA_SUCCESS)
        return OOMPH_OK;
    cu.cuGetErrorName(result, &name);
    cu.cuGetErrorString(result, &text);
    return oomph_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? OOMPH_ERR_NO_MEMORY
                                                         : OOMPH_ERR_DRIVER,
                      "%s failed: %s (%s)", call, name != NULL ? name : "unknown error",
                      text != NULL ? text : "no text");
}

// The same for giving something back: at the end of the process all is given back.
static oomph_status_t check_undo(CUresult result, const char *call)
{
    return result == CUDA_ERROR_DEINITIALIZED ? OOMPH_OK : check(result, call);
}

static oomph_status_t find(void)
{
    PFN_cuDriverGetVersion_v2020 get_version;
    int version = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return oomph_fail(OOMPH_ERR_DRIVER, "there is no CUDA driver: %s", dlerror());

    void *symbol = dlsym(library, "cuDriverGetVersion");
    if (symbol == NULL)
        return oomph_fail(OOMPH_ERR_DRIVER, "libcuda.so.1 is no CUDA driver");
    memcpy(&get_version, &symbol, sizeof get_version);
    if (get_version(&version) != CUDA_SUCCESS || version < DRIVER_MIN)
        return oomph_fail(OOMPH_ERR_DRIVER,
                          "the CUDA driver is for CUDA %d.%d; oomph needs one for CUDA "
                          "12.0 or newer (525.60 or newer)",
                          version / 1000, version % 1000 / 10);
    return find_functions(library);
}

static oomph_status_t start(int *device_count)
{
    oomph_status_t status = find();

    if (status == OOMPH_OK)
        status = check(cu.cuInit(0), "cuInit");
    return status == OOMPH_OK
               ? check(cu.cuDeviceGetCount(device_count), "cuDeviceGetCount")
               : status;
}

/* ---- Capture mode and context of the calling thread */

// While the mode is RELAXED, our calls are allowed although somebody captures.
static CUstreamCaptureMode relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cu.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

static void restore(CUstreamCaptureMode mode)
{
    cu.cuThreadExchangeStreamCaptureMode(&mode);
}

typedef struct scope {
    CUstreamCaptureMode mode;
    CUcontext context; // the thread's
} scope_t;

static oomph_status_t enter(int device, scope_t *scope)
{
    scope->mode = relax();
    oomph_status_t status =
        check(cu.cuCtxGetCurrent(&scope->context), "cuCtxGetCurrent");
    if (status == OOMPH_OK && scope->context != contexts[device])
        status = check(cu.cuCtxSetCurrent(contexts[device]), "cuCtxSetCurrent");
    if (status != OOMPH_OK)
        restore(scope->mode);
    return status;
}

static void leave(int device, const scope_t *scope)
{
    if (scope->context != contexts[device] &&
        cu.cuCtxSetCurrent(scope->context) != CUDA_SUCCESS)
        cu.cuCtxSetCurrent(scope->context); // what failed may have been earlier work
    restore(scope->mode);
}

/* ---- Devices */

static int attribute(CUdevice device, CUdevice_attribute name, int otherwise)
{
    int value = 0;

    return cu.cuDeviceGetAttribute(&value, name, device) == CUDA_SUCCESS ? value
                                                                         : otherwise;
}

static CUmemAllocationProp properties(int device, oomph_tier_t tier,
                                      oomph_host_kind_t kind)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

    // Which pages will be exported is not known when they are made.
    if (tier == OOMPH_TIER_DEVICE && can_export[device])
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
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

static size_t granularity(int device, oomph_tier_t tier)
{
    CUmemAllocationProp prop = properties(device, tier, OOMPH_HOST_NUMA);
    size_t bytes = 0;

    if (cu.cuMemGetAllocationGranularity(
            &bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return 0;
    return bytes;
}

static oomph_status_t open_device(int device, oomph_device_info_t *info)
{
    CUdevice handle;

    oomph_status_t status = check(cu.cuDeviceGet(&handle, device), "cuDeviceGet");
    if (status != OOMPH_OK)
        return status;
    if (attribute(handle, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) ==
        0)
        return oomph_fail(
            OOMPH_ERR_DRIVER,
            "device %d has no virtual memory management (some virtual GPUs "
            "have it switched off)",
            device);
    status = check(cu.cuDeviceTotalMem(&info->total_bytes, handle), "cuDeviceTotalMem");
    if (status == OOMPH_OK && contexts[device] == NULL)
        status = check(cu.cuDevicePrimaryCtxRetain(&contexts[device], handle),
                       "cuDevicePrimaryCtxRetain");
    if (status != OOMPH_OK)
        return status;
    int node = attribute(handle, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
    numa_nodes[device] = node < 0 ? 0 : node;
    can_export[device] =
        attribute(handle,
                  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                  0) != 0;
    info->page_bytes = oomph_max(granularity(device, OOMPH_TIER_DEVICE),
                                 granularity(device, OOMPH_TIER_HOST));
    if (info->page_bytes == 0)
        return oomph_fail(OOMPH_ERR_DRIVER, "device %d tells no page size", device);
    return OOMPH_OK;
}

static oomph_status_t memory_info(int device, size_t *free_bytes, size_t *total_bytes)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuMemGetInfo(free_bytes, total_bytes), "cuMemGetInfo");
    leave(device, &scope);
    return status;
}

/* ---- Address space and pages */

static oomph_status_t reserve(size_t bytes, size_t alignment, oomph_addr_t *addr)
{
    CUdeviceptr pointer = 0;
    CUstreamCaptureMode mode = relax();

    oomph_status_t status =
        check(cu.cuMemAddressReserve(&pointer, bytes, alignment, 0, 0),
              "cuMemAddressReserve");
    restore(mode);
    if (status == OOMPH_OK)
        *addr = pointer;
    return status;
}

static oomph_status_t unreserve(oomph_addr_t addr, size_t bytes)
{
    CUstreamCaptureMode mode = relax();

    oomph_status_t status =
        check_undo(cu.cuMemAddressFree(addr, bytes), "cuMemAddressFree");
    restore(mode);
    return status;
}

// Some drivers crash when asked for pages of a node that does not exist.
static bool has_node(int node)
{
    char path[64];

    snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
    return access(path, F_OK) == 0;
}

static oomph_status_t create(int device, oomph_tier_t tier, oomph_host_kind_t kind,
                             size_t bytes, oomph_handle_t *handle)
{
    CUmemAllocationProp prop = properties(device, tier, kind);
    CUmemGenericAllocationHandle made = 0;

    if (prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
        !has_node(prop.location.id))
        return oomph_fail(OOMPH_ERR_DRIVER, "NUMA node %d is not there",
                          prop.location.id);
    CUstreamCaptureMode mode = relax();
    oomph_status_t status =
        check(cu.cuMemCreate(&made, bytes, &prop, 0), "cuMemCreate");
    restore(mode);
    if (status != OOMPH_OK)
        return status;
    if (tier == OOMPH_TIER_HOST)
        atomic_store(&host_location, prop.location.type);
    *handle = made;
    return OOMPH_OK;
}

static oomph_status_t release(oomph_handle_t handle)
{
    CUstreamCaptureMode mode = relax();

    oomph_status_t status = check_undo(cu.cuMemRelease(handle), "cuMemRelease");
    restore(mode);
    return status;
}

static oomph_status_t map(oomph_addr_t addr, size_t bytes, oomph_handle_t handle)
{
    CUstreamCaptureMode mode = relax();

    oomph_status_t status = check(cu.cuMemMap(addr, bytes, 0, handle, 0), "cuMemMap");
    restore(mode);
    return status;
}

static oomph_status_t unmap(oomph_addr_t addr, size_t bytes)
{
    CUstreamCaptureMode mode = relax();

    oomph_status_t status = check_undo(cu.cuMemUnmap(addr, bytes), "cuMemUnmap");
    restore(mode);
    return status;
}

static oomph_status_t set_access(oomph_addr_t addr, size_t bytes, uint64_t devices,
                                 oomph_tier_t tier)
{
    CUmemAccessDesc desc[OOMPH_DEVICE_MAX + 1];
    size_t count = 0;

    for (int device = 0; device < OOMPH_DEVICE_MAX; device++)
        if (devices >> device & 1)
            desc[count++].location =
                (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    if (tier == OOMPH_TIER_HOST)
        desc[count++].location = (CUmemLocation){.type = atomic_load(&host_location)};
    for (size_t i = 0; i < count; i++)
        desc[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUstreamCaptureMode mode = relax();
    oomph_status_t status =
        check(cu.cuMemSetAccess(addr, bytes, desc, count), "cuMemSetAccess");
    restore(mode);
    return status;
}

/* ---- Other processes */

static oomph_status_t export_page(oomph_handle_t handle, int *descriptor)
{
    int made = -1;
    CUstreamCaptureMode mode = relax();

    oomph_status_t status =
        check(cu.cuMemExportToShareableHandle(
                  &made, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              "cuMemExportToShareableHandle");
    restore(mode);
    if (status == OOMPH_OK) {
        fcntl(made, F_SETFD, FD_CLOEXEC);
        *descriptor = made;
    }
    return status;
}

static oomph_status_t import_page(int descriptor, oomph_handle_t *handle)
{
    CUmemGenericAllocationHandle made = 0;
    CUstreamCaptureMode mode = relax();

    oomph_status_t status = check(
        cu.cuMemImportFromShareableHandle(&made, (void *)(intptr_t)descriptor,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
    restore(mode);
    if (status == OOMPH_OK)
        *handle = made;
    return status;
}

/* ---- Page-locked blocks */

static oomph_status_t pinned_free(int device, oomph_addr_t addr)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check_undo(cu.cuMemFreeHost((void *)(uintptr_t)addr), "cuMemFreeHost");
    leave(device, &scope);
    return status;
}

static oomph_status_t pinned_alloc(int device, size_t bytes, oomph_addr_t *addr)
{
    void *host = NULL;
    CUdeviceptr pointer = 0;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status =
        check(cu.cuMemHostAlloc(&host, bytes,
                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
              "cuMemHostAlloc");
    if (status == OOMPH_OK) {
        status = check(cu.cuMemHostGetDevicePointer(&pointer, host, 0),
                       "cuMemHostGetDevicePointer");
        if (status == OOMPH_OK && pointer != (CUdeviceptr)(uintptr_t)host)
            status = oomph_fail(OOMPH_ERR_DRIVER,
                                "page-locked memory has another address on the device");
        if (status != OOMPH_OK)
            cu.cuMemFreeHost(host);
    }
    leave(device, &scope);
    if (status == OOMPH_OK)
        *addr = pointer;
    return status;
}

/* ---- Streams and events */

static oomph_status_t stream_id(int device, oomph_stream_t stream, uint64_t *id)
{
    unsigned long long value = 0;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuStreamGetId(stream, &value), "cuStreamGetId");
    leave(device, &scope);
    if (status == OOMPH_OK)
        *id = value;
    return status;
}

static oomph_status_t stream_captures(int device, oomph_stream_t stream, bool *captures)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    CUresult result = cu.cuStreamIsCapturing(stream, &state);
    leave(device, &scope);
    // The legacy stream while a stream that it would wait for captures.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        *captures = true;
        return OOMPH_OK;
    }
    status = check(result, "cuStreamIsCapturing");
    if (status == OOMPH_OK)
        *captures = state != CU_STREAM_CAPTURE_STATUS_NONE;
    return status;
}

static oomph_status_t event_create(int device, oomph_event_t *event)
{
    CUevent made = NULL;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    leave(device, &scope);
    if (status == OOMPH_OK)
        *event = (oomph_event_t)made;
    return status;
}

static oomph_status_t event_destroy(int device, oomph_event_t event)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check_undo(cu.cuEventDestroy((CUevent)event), "cuEventDestroy");
    leave(device, &scope);
    return status;
}

static oomph_status_t event_record(int device, oomph_event_t event,
                                   oomph_stream_t stream)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuEventRecord((CUevent)event, stream), "cuEventRecord");
    leave(device, &scope);
    return status;
}

static oomph_status_t event_passed(int device, oomph_event_t event, bool *passed)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    CUresult result = cu.cuEventQuery((CUevent)event);
    leave(device, &scope);
    *passed = result == CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_READY ? OOMPH_OK : check(result, "cuEventQuery");
}

static oomph_status_t event_wait(int device, oomph_event_t event)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuEventSynchronize((CUevent)event), "cuEventSynchronize");
    leave(device, &scope);
    return status;
}

static oomph_status_t drain(int device)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    leave(device, &scope);
    return status;
}

/* ---- Copying, measuring and trimming */

// Waits also where a copy failed: those before it must not run on.
static oomph_status_t copy_all(int device, const oomph_copy_t *copies, size_t count)
{
    CUstream stream = NULL;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status =
        check(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (status == OOMPH_OK) {
        for (size_t i = 0; i < count && status == OOMPH_OK; i++)
            status = check(
                cu.cuMemcpyAsync(copies[i].to, copies[i].from, copies[i].bytes, stream),
                "cuMemcpyAsync");
        CUresult waited = cu.cuStreamSynchronize(stream);
        if (status == OOMPH_OK)
            status = check(waited, "cuStreamSynchronize");
        cu.cuStreamDestroy(stream);
    }
    leave(device, &scope);
    return status;
}

static oomph_status_t copy(int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
                           oomph_stream_t stream)
{
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuMemcpyAsync(to, from, bytes, stream), "cuMemcpyAsync");
    leave(device, &scope);
    return status;
}

static oomph_status_t timed_copies(CUstream stream, const CUevent event[2],
                                   oomph_addr_t to, oomph_addr_t from, size_t bytes,
                                   int count, int64_t *ns)
{
    float milliseconds = 0;
    CUresult result = cu.cuEventRecord(event[0], stream);

    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cu.cuMemcpyAsync(to, from, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = cu.cuEventRecord(event[1], stream);
    if (result == CUDA_SUCCESS)
        result = cu.cuEventSynchronize(event[1]);
    if (result == CUDA_SUCCESS)
        result = cu.cuEventElapsedTime(&milliseconds, event[0], event[1]);
    if (result != CUDA_SUCCESS)
        return check(result, "a timed copy");
    if (milliseconds <= 0)
        return oomph_fail(OOMPH_ERR_DRIVER, "a timed copy took no time");
    *ns = (int64_t)((double)milliseconds * 1e6);
    return OOMPH_OK;
}

static oomph_status_t time_copy(int device, oomph_addr_t to, oomph_addr_t from,
                                size_t bytes, int count, int64_t *ns)
{
    CUevent event[2] = {NULL, NULL};
    CUstream stream = NULL;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status =
        check(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (int i = 0; i < 2 && status == OOMPH_OK; i++)
        status = check(cu.cuEventCreate(&event[i], CU_EVENT_DEFAULT), "cuEventCreate");
    if (status == OOMPH_OK) // once before, so that nothing is measured but the copies
        status = timed_copies(stream, event, to, from, bytes, 1, ns);
    if (status == OOMPH_OK)
        status = timed_copies(stream, event, to, from, bytes, count, ns);
    for (int i = 0; i < 2; i++)
        if (event[i] != NULL)
            cu.cuEventDestroy(event[i]);
    if (stream != NULL)
        cu.cuStreamDestroy(stream);
    leave(device, &scope);
    return status;
}

static oomph_status_t trim(int device)
{
    CUdevice handle;
    CUmemoryPool pool;
    scope_t scope;

    oomph_status_t status = enter(device, &scope);
    if (status != OOMPH_OK)
        return status;
    status = check(cu.cuDeviceGet(&handle, device), "cuDeviceGet");
    if (status == OOMPH_OK)
        status = check(cu.cuDeviceGetDefaultMemPool(&pool, handle),
                       "cuDeviceGetDefaultMemPool");
    if (status == OOMPH_OK)
        status = check(cu.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    leave(device, &scope);
    return status;
}

const oomph_driver_t *oomph_driver_cuda(void)
{
    static const oomph_driver_t driver = {
        .find = find,
        .start = start,
        .open = open_device,
        .memory_info = memory_info,
        .reserve = reserve,
        .unreserve = unreserve,
        .create = create,
        .release = release,
        .map = map,
        .unmap = unmap,
        .set_access = set_access,
        .export_page = export_page,
        .import_page = import_page,
        .pinned_alloc = pinned_alloc,
        .pinned_free = pinned_free,
        .stream_id = stream_id,
        .stream_captures = stream_captures,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_passed = event_passed,
        .event_wait = event_wait,
        .drain = drain,
        .copy = copy,
        .copy_all = copy_all,
        .time_copy = time_copy,
        .trim = trim,
    };

    return &driver;
}
