/* cuda.c - finding libcuda, its errors, and what surrounds each call.
 *
 * The library is loaded by dlopen, so that a machine without a driver can import the
 * package; each function is asked for with the version that its prototype belongs to,
 * since later ones differ.
 */
#include "driver/cuda.h"

#include <dlfcn.h>
#include <string.h>

enum { DRIVER_MIN = 12000 }; // CUDA 12.0: cuStreamGetId, host pages from 12.2

oomph_cu_t oomph_cu;

static CUcontext contexts[OOMPH_DEVICE_MAX];

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
    memcpy(&oomph_cu.name, &symbol, sizeof symbol);
    OOMPH_CUDA_FUNCTIONS(FIND)
#undef FIND
#define FIND(name, version)                                                            \
    if (lookup(#name, &symbol, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) !=  \
        CUDA_SUCCESS)                                                                  \
        symbol = NULL;                                                                 \
    memcpy(&oomph_cu.name, &symbol, sizeof symbol);
    OOMPH_CUDA_NEWER_FUNCTIONS(FIND)
#undef FIND
    return OOMPH_OK;
}

oomph_status_t oomph_cuda_check(CUresult result, const char *call)
{
    const char *name = NULL, *text = NULL;

    if (result == CUDA_SUCCESS)
        return OOMPH_OK;
    oomph_cu.cuGetErrorName(result, &name);
    oomph_cu.cuGetErrorString(result, &text);
    return oomph_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? OOMPH_ERR_NO_MEMORY
                                                         : OOMPH_ERR_DRIVER,
                      "%s failed: %s (%s)", call, name != NULL ? name : "unknown error",
                      text != NULL ? text : "no text");
}

/* The file that a function comes from. */
static const char *path_of(void *function)
{
    Dl_info found;

    return dladdr(function, &found) != 0 ? found.dli_fname : "libcuda.so.1";
}

oomph_status_t oomph_cuda_find(void)
{
    PFN_cuDriverGetVersion_v2020 get_version;
    int version = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return oomph_fail(OOMPH_ERR_DRIVER, "there is no CUDA driver: %s", dlerror());

    void *symbol = dlsym(library, "cuDriverGetVersion");
    if (symbol == NULL)
        return oomph_fail(OOMPH_ERR_DRIVER, "libcuda.so.1 is not a CUDA driver");
    memcpy(&get_version, &symbol, sizeof get_version);
    CUresult result = get_version(&version);
    if (result == CUDA_ERROR_STUB_LIBRARY)
        return oomph_fail(OOMPH_ERR_DRIVER,
                          "%s is the toolkit's stub, not a driver: remove its folder "
                          "from LD_LIBRARY_PATH",
                          path_of(symbol));
    if (result != CUDA_SUCCESS || version < DRIVER_MIN)
        return oomph_fail(OOMPH_ERR_DRIVER,
                          "the CUDA driver is for CUDA %d.%d; oomph needs one for CUDA "
                          "12.0 or newer (525.60 or newer)",
                          version / 1000, version % 1000 / 10);
    return find_functions(library);
}

bool oomph_cuda_records_all(void)
{
    return oomph_cu.cuCtxRecordEvent != NULL;
}

oomph_status_t oomph_cuda_start(int *device_count)
{
    oomph_status_t status = oomph_cuda_find();

    if (status == OOMPH_OK)
        status = oomph_cuda_check(oomph_cu.cuInit(0), "cuInit");
    return status == OOMPH_OK
               ? oomph_cuda_check(oomph_cu.cuDeviceGetCount(device_count),
                                  "cuDeviceGetCount")
               : status;
}

int oomph_cuda_attribute(CUdevice device, CUdevice_attribute name, int otherwise)
{
    int value = 0;

    return oomph_cu.cuDeviceGetAttribute(&value, name, device) == CUDA_SUCCESS
               ? value
               : otherwise;
}

/* ---- Capture mode and context of the calling thread */

CUstreamCaptureMode oomph_cuda_relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    oomph_cu.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

static void restore(CUstreamCaptureMode mode)
{
    oomph_cu.cuThreadExchangeStreamCaptureMode(&mode);
}

oomph_status_t oomph_cuda_restore(CUstreamCaptureMode mode, CUresult result,
                                  const char *call)
{
    restore(mode);
    return oomph_cuda_check(result, call);
}

oomph_status_t oomph_cuda_retain(int device, CUdevice handle)
{
    if (contexts[device] != NULL)
        return OOMPH_OK;
    return oomph_cuda_check(
        oomph_cu.cuDevicePrimaryCtxRetain(&contexts[device], handle),
        "cuDevicePrimaryCtxRetain");
}

bool oomph_cuda_enter(int device, oomph_cuda_scope_t *scope)
{
    *scope = (oomph_cuda_scope_t){.device = device, .mode = oomph_cuda_relax()};
    scope->status =
        oomph_cuda_check(oomph_cu.cuCtxGetCurrent(&scope->context), "cuCtxGetCurrent");
    if (scope->status == OOMPH_OK && scope->context != contexts[device])
        scope->status = oomph_cuda_check(oomph_cu.cuCtxSetCurrent(contexts[device]),
                                         "cuCtxSetCurrent");
    scope->entered = scope->status == OOMPH_OK;
    if (!scope->entered)
        restore(scope->mode);
    return scope->entered;
}

oomph_status_t oomph_cuda_leave(const oomph_cuda_scope_t *scope)
{
    if (!scope->entered)
        return scope->status;
    if (scope->context != contexts[scope->device] &&
        oomph_cu.cuCtxSetCurrent(scope->context) != CUDA_SUCCESS)
        // What failed may have been earlier work.
        oomph_cu.cuCtxSetCurrent(scope->context);
    restore(scope->mode);
    return scope->status;
}
