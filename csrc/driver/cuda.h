/* cuda.h - libcuda's functions, what becomes of their errors, and what surrounds each
 * call. The files of this folder are the only ones of the core that name CUDA.
 */
#pragma once
#include "driver/driver.h"

#include <cudaTypedefs.h>

// Every function that is used, with the version of its prototype.
#define OOMPH_CUDA_FUNCTIONS(X)                                                        \
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
    X(cuMemsetD32Async, 3020)                                                          \
    X(cuDeviceGetDefaultMemPool, 11020)                                                \
    X(cuMemPoolTrimTo, 11020)                                                          \
    X(cuStreamCreate, 2000)                                                            \
    X(cuStreamDestroy, 4000)                                                           \
    X(cuStreamGetId, 12000)                                                            \
    X(cuStreamWaitEvent, 3020)                                                         \
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

// Those that only newer drivers have; NULL where they do not.
#define OOMPH_CUDA_NEWER_FUNCTIONS(X) X(cuCtxRecordEvent, 12050)

#define OOMPH_CUDA_FIELD(name, version) PFN_##name##_v##version name;
typedef struct oomph_cu {
    OOMPH_CUDA_FUNCTIONS(OOMPH_CUDA_FIELD)
    OOMPH_CUDA_NEWER_FUNCTIONS(OOMPH_CUDA_FIELD)
} oomph_cu_t;
#undef OOMPH_CUDA_FIELD

extern oomph_cu_t oomph_cu; // the functions of libcuda, once it is found

// Members of the driver table, see driver.h.
oomph_status_t oomph_cuda_find(void);
bool oomph_cuda_records_all(void);
oomph_status_t oomph_cuda_start(int *device_count);

// An attribute of a device, or `otherwise` where the driver does not know it.
int oomph_cuda_attribute(CUdevice device, CUdevice_attribute name, int otherwise);

// The one place where a CUresult becomes a status, with its text: OOMPH_ERR_NO_MEMORY
// for CUDA_ERROR_OUT_OF_MEMORY, OOMPH_ERR_DRIVER for any other error.
oomph_status_t oomph_cuda_check(CUresult result, const char *call);
// The result of giving something back: at the end of the process all is given back.
static inline CUresult oomph_cuda_undone(CUresult result)
{
    return result == CUDA_ERROR_DEINITIALIZED ? CUDA_SUCCESS : result;
}

// Between the two our calls are allowed although somebody captures. The second checks
// the result of such a call.
CUstreamCaptureMode oomph_cuda_relax(void);
oomph_status_t oomph_cuda_restore(CUstreamCaptureMode mode, CUresult result,
                                  const char *call);

// Makes a device's primary context ours, once. Errors: OOMPH_ERR_DRIVER,
// OOMPH_ERR_NO_MEMORY.
oomph_status_t oomph_cuda_retain(int device, CUdevice handle);

// Between the two the thread has that context, and its calls are allowed likewise.
// Calls are made only if it could be entered; their outcome is put into `status`, which
// leaving gives.
typedef struct oomph_cuda_scope {
    oomph_status_t status;
    bool entered;
    int device;
    CUstreamCaptureMode mode;
    CUcontext context; // the thread's
} oomph_cuda_scope_t;
bool oomph_cuda_enter(int device, oomph_cuda_scope_t *scope);
oomph_status_t oomph_cuda_leave(const oomph_cuda_scope_t *scope);
