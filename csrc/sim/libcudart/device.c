/* device.c - devices, their properties, and peers. */
#include "rt.h"

#include <string.h>

cudaError_t cudaGetDeviceCount(int *count)
{
    CUresult result = rt_start();

    return rt_result(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
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
    CUresult result = rt_start();

    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device);
    return rt_result(result);
}

static int attribute(CUdevice_attribute name, int device)
{
    int value = 0;

    cuDeviceGetAttribute(&value, name, device);
    return value;
}

static size_t size_attribute(CUdevice_attribute name, int device)
{
    return (size_t)attribute(name, device);
}

static void fill_limits(struct cudaDeviceProp *prop, int device)
{
    prop->sharedMemPerBlock =
        size_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device);
    prop->sharedMemPerBlockOptin =
        size_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    prop->sharedMemPerMultiprocessor = size_attribute(
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
    prop->reservedSharedMemPerBlock =
        size_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
    prop->totalConstMem =
        size_attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, device);
    prop->memPitch = size_attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH, device);
    prop->textureAlignment =
        size_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device);
    prop->texturePitchAlignment =
        size_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, device);
    prop->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
    prop->regsPerMultiprocessor =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device);
    prop->warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    prop->maxThreadsPerBlock =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    prop->maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, device);
    prop->maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, device);
    prop->maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, device);
    prop->maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, device);
    prop->maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, device);
    prop->maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, device);
    prop->multiProcessorCount =
        attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    prop->maxThreadsPerMultiProcessor =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    prop->maxBlocksPerMultiProcessor =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device);
    prop->memoryBusWidth =
        attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
    prop->l2CacheSize = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
}

static void fill_abilities(struct cudaDeviceProp *prop, int device)
{
    prop->asyncEngineCount = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device);
    prop->canMapHostMemory = attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, device);
    prop->concurrentKernels = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, device);
    prop->unifiedAddressing = attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device);
    prop->streamPrioritiesSupported =
        attribute(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, device);
    prop->globalL1CacheSupported =
        attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, device);
    prop->localL1CacheSupported =
        attribute(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, device);
    prop->computePreemptionSupported =
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, device);
    prop->canUseHostPointerForRegisteredMem =
        attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device);
    prop->hostRegisterSupported =
        attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, device);
    prop->cooperativeLaunch = attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, device);
    prop->clusterLaunch = attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device);
    prop->memoryPoolsSupported =
        attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    CUresult result = rt_start();

    if (prop == NULL)
        return rt_error(cudaErrorInvalidValue);
    memset(prop, 0, sizeof *prop);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetName(prop->name, sizeof prop->name, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem(&prop->totalGlobalMem, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetUuid((CUuuid *)&prop->uuid, device);
    if (result != CUDA_SUCCESS)
        return rt_result(result);
    prop->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    prop->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    prop->pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
    fill_limits(prop, device);
    fill_abilities(prop, device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    CUresult result = rt_start();

    return rt_result(result == CUDA_SUCCESS ? cuDeviceGetPCIBusId(id, bytes, device)
                                            : result);
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    CUresult result = rt_start();

    return rt_result(result == CUDA_SUCCESS ? cuDeviceGetByPCIBusId(device, id)
                                            : result);
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    CUresult result = rt_start();

    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxSetFlags(rt_device(), flags);
    return rt_result(result);
}

cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuCtxGetFlags(flags) : result);
}

cudaError_t cudaDeviceSynchronize(void)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuCtxSynchronize() : result);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult result = rt_bind();

    if (result == CUDA_SUCCESS)
        result = cuCtxGetStreamPriorityRange(least, greatest);
    return rt_result(result);
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuCtxGetLimit(value, (CUlimit)limit)
                                            : result);
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuCtxSetLimit((CUlimit)limit, value)
                                            : result);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    CUresult result = rt_start();

    return rt_result(result == CUDA_SUCCESS ? cuDeviceCanAccessPeer(can, device, peer)
                                            : result);
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr name,
                                      int device, int peer)
{
    CUresult result = rt_start();

    if (result == CUDA_SUCCESS)
        result =
            cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)name, device, peer);
    return rt_result(result);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    CUresult result = rt_bind();

    if (result == CUDA_SUCCESS)
        result = rt_context(peer, &context);
    if (result == CUDA_SUCCESS)
        result = cuCtxEnablePeerAccess(context, flags);
    return rt_result(result);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    CUcontext context;
    CUresult result = rt_bind();

    if (result == CUDA_SUCCESS)
        result = rt_context(peer, &context);
    if (result == CUDA_SUCCESS)
        result = cuCtxDisablePeerAccess(context);
    return rt_result(result);
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
