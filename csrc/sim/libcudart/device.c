/* device.c - devices, their properties, and peers. */
#include "variants.h"

#include <string.h>

cudaError_t cudaGetDeviceCount(int *count)
{
    return RT_STARTED(cuDeviceGetCount(count));
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return rt_result(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (version == NULL)
        return rt_error(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute,
                                   int device)
{
    return RT_STARTED(
        cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

static int attribute(enum cudaDeviceAttr name, int device)
{
    int value = 0;

    cuDeviceGetAttribute(&value, (CUdevice_attribute)name, device);
    return value;
}

static size_t size_attribute(enum cudaDeviceAttr name, int device)
{
    return (size_t)attribute(name, device);
}

static void fill_limits(struct cudaDeviceProp *prop, int device)
{
    prop->sharedMemPerBlock =
        size_attribute(cudaDevAttrMaxSharedMemoryPerBlock, device);
    prop->sharedMemPerBlockOptin =
        size_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    prop->sharedMemPerMultiprocessor =
        size_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    prop->reservedSharedMemPerBlock =
        size_attribute(cudaDevAttrReservedSharedMemoryPerBlock, device);
    prop->totalConstMem = size_attribute(cudaDevAttrTotalConstantMemory, device);
    prop->memPitch = size_attribute(cudaDevAttrMaxPitch, device);
    prop->textureAlignment = size_attribute(cudaDevAttrTextureAlignment, device);
    prop->texturePitchAlignment =
        size_attribute(cudaDevAttrTexturePitchAlignment, device);
    prop->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock, device);
    prop->regsPerMultiprocessor =
        attribute(cudaDevAttrMaxRegistersPerMultiprocessor, device);
    prop->warpSize = attribute(cudaDevAttrWarpSize, device);
    prop->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock, device);
    prop->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX, device);
    prop->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY, device);
    prop->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ, device);
    prop->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX, device);
    prop->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY, device);
    prop->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ, device);
    prop->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount, device);
    prop->maxThreadsPerMultiProcessor =
        attribute(cudaDevAttrMaxThreadsPerMultiProcessor, device);
    prop->maxBlocksPerMultiProcessor =
        attribute(cudaDevAttrMaxBlocksPerMultiprocessor, device);
    prop->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
    prop->l2CacheSize = attribute(cudaDevAttrL2CacheSize, device);
}

static void fill_abilities(struct cudaDeviceProp *prop, int device)
{
    prop->asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount, device);
    prop->canMapHostMemory = attribute(cudaDevAttrCanMapHostMemory, device);
    prop->concurrentKernels = attribute(cudaDevAttrConcurrentKernels, device);
    prop->unifiedAddressing = attribute(cudaDevAttrUnifiedAddressing, device);
    prop->streamPrioritiesSupported =
        attribute(cudaDevAttrStreamPrioritiesSupported, device);
    prop->globalL1CacheSupported = attribute(cudaDevAttrGlobalL1CacheSupported, device);
    prop->localL1CacheSupported = attribute(cudaDevAttrLocalL1CacheSupported, device);
    prop->computePreemptionSupported =
        attribute(cudaDevAttrComputePreemptionSupported, device);
    prop->canUseHostPointerForRegisteredMem =
        attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, device);
    prop->hostRegisterSupported = attribute(cudaDevAttrHostRegisterSupported, device);
    prop->cooperativeLaunch = attribute(cudaDevAttrCooperativeLaunch, device);
    prop->clusterLaunch = attribute(cudaDevAttrClusterLaunch, device);
    prop->memoryPoolsSupported = attribute(cudaDevAttrMemoryPoolsSupported, device);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    if (prop == NULL)
        return rt_error(cudaErrorInvalidValue);
    memset(prop, 0, sizeof *prop);
    if (!rt_start())
        return cudaPeekAtLastError();
    CUresult result = cuDeviceGetName(prop->name, sizeof prop->name, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem(&prop->totalGlobalMem, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetUuid((CUuuid *)&prop->uuid, device);
    if (result != CUDA_SUCCESS)
        return rt_result(result);
    prop->major = attribute(cudaDevAttrComputeCapabilityMajor, device);
    prop->minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
    prop->pciBusID = attribute(cudaDevAttrPciBusId, device);
    fill_limits(prop, device);
    fill_abilities(prop, device);
    rt_fill_older(prop, device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    return RT_STARTED(cuDeviceGetPCIBusId(id, bytes, device));
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    return RT_STARTED(cuDeviceGetByPCIBusId(device, id));
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    return RT_STARTED(cuDevicePrimaryCtxSetFlags(rt_device(), flags));
}

cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    return RT_BOUND(cuCtxGetFlags(flags));
}

cudaError_t cudaDeviceSynchronize(void)
{
    return RT_BOUND(cuCtxSynchronize());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return RT_BOUND(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    return RT_BOUND(cuCtxGetLimit(value, (CUlimit)limit));
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    return RT_BOUND(cuCtxSetLimit((CUlimit)limit, value));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return RT_STARTED(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr name,
                                      int device, int peer)
{
    return RT_STARTED(
        cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)name, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;

    if (!rt_bind())
        return cudaPeekAtLastError();
    CUresult result = rt_context(peer, &context);
    return rt_result(result == CUDA_SUCCESS ? cuCtxEnablePeerAccess(context, flags)
                                            : result);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext context;

    if (!rt_bind())
        return cudaPeekAtLastError();
    CUresult result = rt_context(peer, &context);
    return rt_result(result == CUDA_SUCCESS ? cuCtxDisablePeerAccess(context) : result);
}

#pragma GCC visibility push(default) // their header is not among those of PyTorch
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
#pragma GCC visibility pop

cudaError_t cudaProfilerStart(void)
{
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
    return cudaSuccess;
}

// ---- entry points of the driver

cudaError_t
cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                 unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult found;
    CUresult result = cuGetProcAddress(name, function, (int)version, flags, &found);

    if (result == CUDA_SUCCESS && status != NULL)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return rt_result(result);
}
