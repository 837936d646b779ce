/* entry.c - the entry points by name and version. */
#include "libcuda/base/lock.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/context.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"

#include <string.h>

typedef void (*function_t)(void);

// One variant of a call: the one to use from CUDA version `since` on, until a later
// one.
typedef struct entry {
    const char *name;
    int since; // 1000 * major + 10 * minor
    function_t function;
} entry_t;

// PyTorch calls these without asking whether the driver has them: they exist, and fail.
static CUresult refuse(const char *function)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS) {
        sim_unsupported(function);
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    return sim_return(result);
}

static CUresult refuse_green_contexts(void)
{
    return refuse("cuGreenCtxCreate");
}

static CUresult refuse_multicast(void)
{
    return refuse("cuMulticastCreate");
}

static const entry_t ENTRIES[] = {
    {"cuCtxDisablePeerAccess", 4000, (function_t)cuCtxDisablePeerAccess},
    {"cuCtxEnablePeerAccess", 4000, (function_t)cuCtxEnablePeerAccess},
    {"cuCtxFromGreenCtx", 12040, (function_t)refuse_green_contexts},
    {"cuCtxGetApiVersion", 3020, (function_t)cuCtxGetApiVersion},
    {"cuCtxGetCurrent", 4000, (function_t)cuCtxGetCurrent},
    {"cuCtxGetDevice", 2000, (function_t)cuCtxGetDevice},
    {"cuCtxGetDevice", 13000, (function_t)sim_ctx_get_device_of},
    {"cuCtxGetFlags", 7000, (function_t)cuCtxGetFlags},
    {"cuCtxGetId", 12000, (function_t)cuCtxGetId},
    {"cuCtxGetLimit", 3010, (function_t)cuCtxGetLimit},
    {"cuCtxGetStreamPriorityRange", 5050, (function_t)cuCtxGetStreamPriorityRange},
    {"cuCtxPopCurrent", 4000, (function_t)cuCtxPopCurrent_v2},
    {"cuCtxPushCurrent", 4000, (function_t)cuCtxPushCurrent_v2},
    {"cuCtxRecordEvent", 12050, (function_t)cuCtxRecordEvent},
    {"cuCtxSetCurrent", 4000, (function_t)cuCtxSetCurrent},
    {"cuCtxSetLimit", 3010, (function_t)cuCtxSetLimit},
    {"cuCtxSynchronize", 2000, (function_t)cuCtxSynchronize},
    {"cuCtxSynchronize", 13000, (function_t)sim_ctx_synchronize},
    {"cuDevResourceGenerateDesc", 12040, (function_t)refuse_green_contexts},
    {"cuDevSmResourceSplitByCount", 12040, (function_t)refuse_green_contexts},
    {"cuDeviceCanAccessPeer", 4000, (function_t)cuDeviceCanAccessPeer},
    {"cuDeviceGet", 2000, (function_t)cuDeviceGet},
    {"cuDeviceGetAttribute", 2000, (function_t)cuDeviceGetAttribute},
    {"cuDeviceGetByPCIBusId", 4010, (function_t)cuDeviceGetByPCIBusId},
    {"cuDeviceGetCount", 2000, (function_t)cuDeviceGetCount},
    {"cuDeviceGetDefaultMemPool", 11020, (function_t)cuDeviceGetDefaultMemPool},
    {"cuDeviceGetDevResource", 12040, (function_t)refuse_green_contexts},
    {"cuDeviceGetMemPool", 11020, (function_t)cuDeviceGetMemPool},
    {"cuDeviceGetName", 2000, (function_t)cuDeviceGetName},
    {"cuDeviceGetP2PAttribute", 8000, (function_t)cuDeviceGetP2PAttribute},
    {"cuDeviceGetPCIBusId", 4010, (function_t)cuDeviceGetPCIBusId},
    {"cuDeviceGetUuid", 9020, (function_t)cuDeviceGetUuid},
    {"cuDeviceGetUuid", 11040, (function_t)cuDeviceGetUuid_v2},
    {"cuDevicePrimaryCtxGetState", 7000, (function_t)cuDevicePrimaryCtxGetState},
    {"cuDevicePrimaryCtxRelease", 11000, (function_t)cuDevicePrimaryCtxRelease_v2},
    {"cuDevicePrimaryCtxReset", 11000, (function_t)cuDevicePrimaryCtxReset_v2},
    {"cuDevicePrimaryCtxRetain", 7000, (function_t)cuDevicePrimaryCtxRetain},
    {"cuDevicePrimaryCtxSetFlags", 11000, (function_t)cuDevicePrimaryCtxSetFlags_v2},
    {"cuDeviceTotalMem", 3020, (function_t)cuDeviceTotalMem_v2},
    {"cuDriverGetVersion", 2020, (function_t)cuDriverGetVersion},
    {"cuEventCreate", 2000, (function_t)cuEventCreate},
    {"cuEventDestroy", 4000, (function_t)cuEventDestroy_v2},
    {"cuEventElapsedTime", 2000, (function_t)cuEventElapsedTime},
    {"cuEventElapsedTime", 12080, (function_t)cuEventElapsedTime_v2},
    {"cuEventQuery", 2000, (function_t)cuEventQuery},
    {"cuEventRecord", 2000, (function_t)cuEventRecord},
    {"cuEventRecordWithFlags", 11010, (function_t)cuEventRecordWithFlags},
    {"cuEventSynchronize", 2000, (function_t)cuEventSynchronize},
    {"cuFuncGetAttribute", 2020, (function_t)cuFuncGetAttribute},
    {"cuFuncGetModule", 11000, (function_t)cuFuncGetModule},
    {"cuFuncGetName", 12030, (function_t)cuFuncGetName},
    {"cuFuncSetAttribute", 9000, (function_t)cuFuncSetAttribute},
    {"cuFuncSetCacheConfig", 3000, (function_t)cuFuncSetCacheConfig},
    {"cuGetErrorName", 6000, (function_t)cuGetErrorName},
    {"cuGetErrorString", 6000, (function_t)cuGetErrorString},
    {"cuGetExportTable", 3000, (function_t)cuGetExportTable},
    {"cuGetProcAddress", 11030, (function_t)cuGetProcAddress},
    {"cuGetProcAddress", 12000, (function_t)cuGetProcAddress_v2},
    {"cuGraphDebugDotPrint", 11030, (function_t)cuGraphDebugDotPrint},
    {"cuGraphDestroy", 10000, (function_t)cuGraphDestroy},
    {"cuGraphExecDestroy", 10000, (function_t)cuGraphExecDestroy},
    {"cuGraphExecUpdate", 12000, (function_t)cuGraphExecUpdate_v2},
    {"cuGraphGetNodes", 10000, (function_t)cuGraphGetNodes},
    {"cuGraphInstantiateWithFlags", 11040, (function_t)cuGraphInstantiateWithFlags},
    {"cuGraphInstantiateWithParams", 12000, (function_t)cuGraphInstantiateWithParams},
    {"cuGraphLaunch", 10000, (function_t)cuGraphLaunch},
    {"cuGraphNodeGetDependencies", 10000, (function_t)cuGraphNodeGetDependencies},
    {"cuGraphNodeGetDependencies", 12030, (function_t)cuGraphNodeGetDependencies_v2},
    {"cuGraphNodeGetType", 10000, (function_t)cuGraphNodeGetType},
    {"cuGraphReleaseUserObject", 11030, (function_t)cuGraphReleaseUserObject},
    {"cuGraphRetainUserObject", 11030, (function_t)cuGraphRetainUserObject},
    {"cuGraphUpload", 11010, (function_t)cuGraphUpload},
    {"cuGreenCtxCreate", 12040, (function_t)refuse_green_contexts},
    {"cuGreenCtxDestroy", 12040, (function_t)refuse_green_contexts},
    {"cuGreenCtxStreamCreate", 12050, (function_t)refuse_green_contexts},
    {"cuInit", 2000, (function_t)cuInit},
    {"cuIpcCloseMemHandle", 4010, (function_t)cuIpcCloseMemHandle},
    {"cuIpcGetEventHandle", 4010, (function_t)cuIpcGetEventHandle},
    {"cuIpcGetMemHandle", 4010, (function_t)cuIpcGetMemHandle},
    {"cuIpcOpenEventHandle", 4010, (function_t)cuIpcOpenEventHandle},
    {"cuIpcOpenMemHandle", 11000, (function_t)cuIpcOpenMemHandle_v2},
    {"cuKernelGetFunction", 12000, (function_t)cuKernelGetFunction},
    {"cuLaunchCooperativeKernel", 9000, (function_t)cuLaunchCooperativeKernel},
    {"cuLaunchHostFunc", 10000, (function_t)cuLaunchHostFunc},
    {"cuLaunchKernel", 4000, (function_t)cuLaunchKernel},
    {"cuLaunchKernelEx", 11060, (function_t)cuLaunchKernelEx},
    {"cuLibraryGetKernel", 12000, (function_t)cuLibraryGetKernel},
    {"cuLibraryGetModule", 12000, (function_t)cuLibraryGetModule},
    {"cuLibraryLoadData", 12000, (function_t)cuLibraryLoadData},
    {"cuLibraryUnload", 12000, (function_t)cuLibraryUnload},
    {"cuMemAddressFree", 10020, (function_t)cuMemAddressFree},
    {"cuMemAddressReserve", 10020, (function_t)cuMemAddressReserve},
    {"cuMemAdvise", 8000, (function_t)cuMemAdvise},
    {"cuMemAdvise", 12020, (function_t)cuMemAdvise_v2},
    {"cuMemAlloc", 3020, (function_t)cuMemAlloc_v2},
    {"cuMemAllocAsync", 11020, (function_t)cuMemAllocAsync},
    {"cuMemAllocFromPoolAsync", 11020, (function_t)cuMemAllocFromPoolAsync},
    {"cuMemAllocHost", 3020, (function_t)cuMemAllocHost_v2},
    {"cuMemAllocManaged", 6000, (function_t)cuMemAllocManaged},
    {"cuMemAllocPitch", 3020, (function_t)cuMemAllocPitch_v2},
    {"cuMemCreate", 10020, (function_t)cuMemCreate},
    {"cuMemExportToShareableHandle", 10020, (function_t)cuMemExportToShareableHandle},
    {"cuMemFree", 3020, (function_t)cuMemFree_v2},
    {"cuMemFreeAsync", 11020, (function_t)cuMemFreeAsync},
    {"cuMemFreeHost", 2000, (function_t)cuMemFreeHost},
    {"cuMemGetAccess", 10020, (function_t)cuMemGetAccess},
    {"cuMemGetAddressRange", 3020, (function_t)cuMemGetAddressRange_v2},
    {"cuMemGetAllocationGranularity", 10020, (function_t)cuMemGetAllocationGranularity},
    {"cuMemGetAllocationPropertiesFromHandle", 10020,
     (function_t)cuMemGetAllocationPropertiesFromHandle},
    {"cuMemGetInfo", 3020, (function_t)cuMemGetInfo_v2},
    {"cuMemHostAlloc", 2020, (function_t)cuMemHostAlloc},
    {"cuMemHostGetDevicePointer", 3020, (function_t)cuMemHostGetDevicePointer_v2},
    {"cuMemHostGetFlags", 2030, (function_t)cuMemHostGetFlags},
    {"cuMemHostRegister", 6050, (function_t)cuMemHostRegister_v2},
    {"cuMemHostUnregister", 4000, (function_t)cuMemHostUnregister},
    {"cuMemImportFromShareableHandle", 10020,
     (function_t)cuMemImportFromShareableHandle},
    {"cuMemMap", 10020, (function_t)cuMemMap},
    {"cuMemPoolGetAttribute", 11020, (function_t)cuMemPoolGetAttribute},
    {"cuMemPoolSetAccess", 11020, (function_t)cuMemPoolSetAccess},
    {"cuMemPoolSetAttribute", 11020, (function_t)cuMemPoolSetAttribute},
    {"cuMemPoolTrimTo", 11020, (function_t)cuMemPoolTrimTo},
    {"cuMemPrefetchAsync", 8000, (function_t)cuMemPrefetchAsync},
    {"cuMemPrefetchAsync", 12020, (function_t)cuMemPrefetchAsync_v2},
    {"cuMemRelease", 10020, (function_t)cuMemRelease},
    {"cuMemRetainAllocationHandle", 11000, (function_t)cuMemRetainAllocationHandle},
    {"cuMemSetAccess", 10020, (function_t)cuMemSetAccess},
    {"cuMemUnmap", 10020, (function_t)cuMemUnmap},
    {"cuMemcpy", 4000, (function_t)cuMemcpy},
    {"cuMemcpy2D", 3020, (function_t)cuMemcpy2D_v2},
    {"cuMemcpy2DAsync", 3020, (function_t)cuMemcpy2DAsync_v2},
    {"cuMemcpy2DUnaligned", 3020, (function_t)cuMemcpy2DUnaligned_v2},
    {"cuMemcpyAsync", 4000, (function_t)cuMemcpyAsync},
    {"cuMemcpyDtoD", 3020, (function_t)cuMemcpyDtoD_v2},
    {"cuMemcpyDtoDAsync", 3020, (function_t)cuMemcpyDtoDAsync_v2},
    {"cuMemcpyDtoH", 3020, (function_t)cuMemcpyDtoH_v2},
    {"cuMemcpyDtoHAsync", 3020, (function_t)cuMemcpyDtoHAsync_v2},
    {"cuMemcpyHtoD", 3020, (function_t)cuMemcpyHtoD_v2},
    {"cuMemcpyHtoDAsync", 3020, (function_t)cuMemcpyHtoDAsync_v2},
    {"cuMemcpyPeer", 4000, (function_t)cuMemcpyPeer},
    {"cuMemcpyPeerAsync", 4000, (function_t)cuMemcpyPeerAsync},
    {"cuMemsetD16", 3020, (function_t)cuMemsetD16_v2},
    {"cuMemsetD16Async", 3020, (function_t)cuMemsetD16Async},
    {"cuMemsetD2D8", 3020, (function_t)cuMemsetD2D8_v2},
    {"cuMemsetD2D8Async", 3020, (function_t)cuMemsetD2D8Async},
    {"cuMemsetD32", 3020, (function_t)cuMemsetD32_v2},
    {"cuMemsetD32Async", 3020, (function_t)cuMemsetD32Async},
    {"cuMemsetD8", 3020, (function_t)cuMemsetD8_v2},
    {"cuMemsetD8Async", 3020, (function_t)cuMemsetD8Async},
    {"cuModuleGetFunction", 2000, (function_t)cuModuleGetFunction},
    {"cuModuleGetGlobal", 3020, (function_t)cuModuleGetGlobal_v2},
    {"cuModuleGetLoadingMode", 11070, (function_t)cuModuleGetLoadingMode},
    {"cuModuleLoad", 2000, (function_t)cuModuleLoad},
    {"cuModuleLoadData", 2000, (function_t)cuModuleLoadData},
    {"cuModuleLoadDataEx", 2010, (function_t)cuModuleLoadDataEx},
    {"cuModuleUnload", 2000, (function_t)cuModuleUnload},
    {"cuMulticastAddDevice", 12010, (function_t)refuse_multicast},
    {"cuMulticastBindMem", 12010, (function_t)refuse_multicast},
    {"cuMulticastCreate", 12010, (function_t)refuse_multicast},
    {"cuMulticastUnbind", 12010, (function_t)refuse_multicast},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050,
     (function_t)cuOccupancyMaxActiveBlocksPerMultiprocessor},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000,
     (function_t)cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags},
    {"cuOccupancyMaxActiveClusters", 11070, (function_t)cuOccupancyMaxActiveClusters},
    {"cuPointerGetAttribute", 4000, (function_t)cuPointerGetAttribute},
    {"cuPointerGetAttributes", 7000, (function_t)cuPointerGetAttributes},
    {"cuPointerSetAttribute", 6000, (function_t)cuPointerSetAttribute},
    {"cuStreamAddCallback", 5000, (function_t)cuStreamAddCallback},
    {"cuStreamAttachMemAsync", 6000, (function_t)cuStreamAttachMemAsync},
    {"cuStreamBatchMemOp", 11070, (function_t)cuStreamBatchMemOp_v2},
    {"cuStreamBeginCapture", 10010, (function_t)cuStreamBeginCapture_v2},
    {"cuStreamCreate", 2000, (function_t)cuStreamCreate},
    {"cuStreamCreateWithPriority", 5050, (function_t)cuStreamCreateWithPriority},
    {"cuStreamDestroy", 4000, (function_t)cuStreamDestroy_v2},
    {"cuStreamEndCapture", 10000, (function_t)cuStreamEndCapture},
    {"cuStreamGetCaptureInfo", 10010, (function_t)cuStreamGetCaptureInfo},
    {"cuStreamGetCaptureInfo", 11030, (function_t)cuStreamGetCaptureInfo_v2},
    {"cuStreamGetCaptureInfo", 12030, (function_t)cuStreamGetCaptureInfo_v3},
    {"cuStreamGetCtx", 9020, (function_t)cuStreamGetCtx},
    {"cuStreamGetDevice", 12080, (function_t)cuStreamGetDevice},
    {"cuStreamGetFlags", 5050, (function_t)cuStreamGetFlags},
    {"cuStreamGetId", 12000, (function_t)cuStreamGetId},
    {"cuStreamGetPriority", 5050, (function_t)cuStreamGetPriority},
    {"cuStreamIsCapturing", 10000, (function_t)cuStreamIsCapturing},
    {"cuStreamQuery", 2000, (function_t)cuStreamQuery},
    {"cuStreamSynchronize", 2000, (function_t)cuStreamSynchronize},
    {"cuStreamWaitEvent", 3020, (function_t)cuStreamWaitEvent},
    {"cuStreamWaitValue32", 11070, (function_t)cuStreamWaitValue32_v2},
    {"cuStreamWaitValue64", 11070, (function_t)cuStreamWaitValue64_v2},
    {"cuStreamWriteValue32", 11070, (function_t)cuStreamWriteValue32_v2},
    {"cuStreamWriteValue64", 11070, (function_t)cuStreamWriteValue64_v2},
    {"cuTensorMapEncodeTiled", 12000, (function_t)cuTensorMapEncodeTiled},
    {"cuThreadExchangeStreamCaptureMode", 10010,
     (function_t)cuThreadExchangeStreamCaptureMode},
    {"cuUserObjectCreate", 11030, (function_t)cuUserObjectCreate},
    {"cuUserObjectRelease", 11030, (function_t)cuUserObjectRelease},
    {"cuUserObjectRetain", 11030, (function_t)cuUserObjectRetain},
};
enum { ENTRY_COUNT = sizeof ENTRIES / sizeof ENTRIES[0] };

// The newest variant up to `version`. Per-thread default streams are all the same:
// `flags` of the search have no effect.
static CUdriverProcAddressQueryResult find(const char *name, int version,
                                           function_t *function)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int newest = 0;

    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        const entry_t *entry = &ENTRIES[i];
        if (entry->since > sim_config.driver_version || strcmp(entry->name, name) != 0)
            continue;
        if (entry->since <= version && entry->since > newest) {
            newest = entry->since;
            *function = entry->function;
            status = CU_GET_PROC_ADDRESS_SUCCESS;
        } else if (newest == 0) {
            status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    return status;
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version,
                             cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    function_t function = NULL;

    (void)flags;
    if (name == NULL || out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    bool version_is_known = version <= sim_config.driver_version;
    CUdriverProcAddressQueryResult found = find(name, version, &function);
    sim_unlock();
    if (!version_is_known)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &function, sizeof function);
    if (status != NULL)
        *status = found;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags)
{
    CUresult result = cuGetProcAddress_v2(name, out, version, flags, NULL);

    return result == CUDA_SUCCESS && *out == NULL ? CUDA_ERROR_NOT_FOUND : result;
}

// Private tables of the real driver; whoever needs one cannot run on a simulation.
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    CUresult result = sim_enter_uninitialised(__func__);

    if (table != NULL)
        *table = NULL;
    if (result == CUDA_SUCCESS)
        result = CUDA_ERROR_NOT_SUPPORTED;
    return sim_leave(result, "%p", (const void *)id);
}
