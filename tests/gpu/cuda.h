/* cuda.h - libcuda's functions, loaded from whatever libcuda.so.1 is found: NVIDIA's,
 * or the simulated one. Each as of the version that its prototype belongs to.
 */
#pragma once
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define CUDA_FUNCTIONS(X)                                                              \
    X(init, cuInit, 2000)                                                              \
    X(driver_version, cuDriverGetVersion, 2020)                                        \
    X(device_count, cuDeviceGetCount, 2000)                                            \
    X(device_name, cuDeviceGetName, 2000)                                              \
    X(device_attribute, cuDeviceGetAttribute, 2000)                                    \
    X(context_retain, cuDevicePrimaryCtxRetain, 7000)                                  \
    X(context_release, cuDevicePrimaryCtxRelease, 11000)                               \
    X(context_state, cuDevicePrimaryCtxGetState, 7000)                                 \
    X(context_set, cuCtxSetCurrent, 4000)                                              \
    X(context_synchronize, cuCtxSynchronize, 2000)                                     \
    X(can_access_peer, cuDeviceCanAccessPeer, 4000)                                    \
    X(enable_peer, cuCtxEnablePeerAccess, 4000)                                        \
    X(disable_peer, cuCtxDisablePeerAccess, 4000)                                      \
    X(memory_info, cuMemGetInfo, 3020)                                                 \
    X(alloc, cuMemAlloc, 3020)                                                         \
    X(free, cuMemFree, 3020)                                                           \
    X(host_alloc, cuMemHostAlloc, 2020)                                                \
    X(host_free, cuMemFreeHost, 2000)                                                  \
    X(host_register, cuMemHostRegister, 6050)                                          \
    X(host_unregister, cuMemHostUnregister, 4000)                                      \
    X(alloc_async, cuMemAllocAsync, 11020)                                             \
    X(free_async, cuMemFreeAsync, 11020)                                               \
    X(alloc_from_pool, cuMemAllocFromPoolAsync, 11020)                                 \
    X(default_pool, cuDeviceGetDefaultMemPool, 11020)                                  \
    X(current_pool, cuDeviceGetMemPool, 11020)                                         \
    X(pool_get, cuMemPoolGetAttribute, 11020)                                          \
    X(pool_set, cuMemPoolSetAttribute, 11020)                                          \
    X(pool_trim, cuMemPoolTrimTo, 11020)                                               \
    X(granularity, cuMemGetAllocationGranularity, 10020)                               \
    X(reserve, cuMemAddressReserve, 10020)                                             \
    X(unreserve, cuMemAddressFree, 10020)                                              \
    X(create, cuMemCreate, 10020)                                                      \
    X(release, cuMemRelease, 10020)                                                    \
    X(map, cuMemMap, 10020)                                                            \
    X(unmap, cuMemUnmap, 10020)                                                        \
    X(set_access, cuMemSetAccess, 10020)                                               \
    X(get_access, cuMemGetAccess, 10020)                                               \
    X(retain, cuMemRetainAllocationHandle, 11000)                                      \
    X(export_handle, cuMemExportToShareableHandle, 10020)                              \
    X(import_handle, cuMemImportFromShareableHandle, 10020)                            \
    X(ipc_get_memory, cuIpcGetMemHandle, 4010)                                         \
    X(ipc_open_memory, cuIpcOpenMemHandle, 11000)                                      \
    X(ipc_close_memory, cuIpcCloseMemHandle, 4010)                                     \
    X(ipc_get_event, cuIpcGetEventHandle, 4010)                                        \
    X(ipc_open_event, cuIpcOpenEventHandle, 4010)                                      \
    X(properties, cuMemGetAllocationPropertiesFromHandle, 10020)                       \
    X(pointer_attribute, cuPointerGetAttribute, 4000)                                  \
    X(copy_in, cuMemcpyHtoD, 3020)                                                     \
    X(copy_out, cuMemcpyDtoH, 3020)                                                    \
    X(copy_across, cuMemcpyDtoD, 3020)                                                 \
    X(copy_across_async, cuMemcpyDtoDAsync, 3020)                                      \
    X(copy_peer, cuMemcpyPeer, 4000)                                                   \
    X(copy_peer_async, cuMemcpyPeerAsync, 4000)                                        \
    X(copy_out_async, cuMemcpyDtoHAsync, 3020)                                         \
    X(fill, cuMemsetD32, 3020)                                                         \
    X(fill_async, cuMemsetD32Async, 3020)                                              \
    X(stream_create, cuStreamCreate, 2000)                                             \
    X(stream_destroy, cuStreamDestroy, 4000)                                           \
    X(stream_synchronize, cuStreamSynchronize, 2000)                                   \
    X(stream_query, cuStreamQuery, 2000)                                               \
    X(stream_wait, cuStreamWaitEvent, 3020)                                            \
    X(stream_id, cuStreamGetId, 12000)                                                 \
    X(write_value, cuStreamWriteValue32, 11070)                                        \
    X(wait_value, cuStreamWaitValue32, 11070)                                          \
    X(batch_values, cuStreamBatchMemOp, 11070)                                         \
    X(module_load, cuModuleLoadData, 2000)                                             \
    X(module_function, cuModuleGetFunction, 2000)                                      \
    X(launch, cuLaunchKernel, 4000)                                                    \
    X(launch_host, cuLaunchHostFunc, 10000)                                            \
    X(add_callback, cuStreamAddCallback, 5000)                                         \
    X(event_create, cuEventCreate, 2000)                                               \
    X(event_destroy, cuEventDestroy, 4000)                                             \
    X(event_record, cuEventRecord, 2000)                                               \
    X(event_query, cuEventQuery, 2000)                                                 \
    X(event_synchronize, cuEventSynchronize, 2000)                                     \
    X(elapsed, cuEventElapsedTime, 2000)                                               \
    X(capture_begin, cuStreamBeginCapture, 10010)                                      \
    X(capture_end, cuStreamEndCapture, 10000)                                          \
    X(capture_status, cuStreamIsCapturing, 10000)                                      \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, 10010)                          \
    X(graph_instantiate, cuGraphInstantiateWithFlags, 11040)                           \
    X(graph_update, cuGraphExecUpdate, 12000)                                          \
    X(graph_nodes, cuGraphGetNodes, 10000)                                             \
    X(graph_launch, cuGraphLaunch, 10000)                                              \
    X(graph_destroy, cuGraphDestroy, 10000)                                            \
    X(exec_destroy, cuGraphExecDestroy, 10000)                                         \
    X(error_name, cuGetErrorName, 6000)                                                \
    X(proc_address, cuGetProcAddress, 12000)

#define FIELD(field, name, version) PFN_##name##_v##version field;
static struct {
    CUDA_FUNCTIONS(FIELD)
} cu;
#undef FIELD

// Finds all functions. Returns the name of one that is missing, or NULL.
static const char *cuda_load(void)
{
    PFN_cuGetProcAddress_v12000 lookup;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;

    if (symbol == NULL)
        return library ? "cuGetProcAddress_v2" : "libcuda.so.1";
    memcpy(&lookup, &symbol, sizeof lookup);
#define FIND(field, name, version)                                                     \
    if (lookup(#name, &symbol, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL) !=    \
            CUDA_SUCCESS ||                                                            \
        symbol == NULL)                                                                \
        return #name;                                                                  \
    memcpy(&cu.field, &symbol, sizeof symbol);
    CUDA_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}
