/* memory.c - memory of devices, pinned memory, copies. */
#include "rt.h"

#include <string.h>

// ---- device memory

cudaError_t cudaMalloc(void **place, size_t bytes)
{
    CUdeviceptr addr = 0;
    CUresult result = rt_bind();

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (result == CUDA_SUCCESS && bytes > 0)
        result = cuMemAlloc(&addr, bytes);
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)addr;
    return rt_result(result);
}

cudaError_t cudaFree(void *place)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemFree(rt_address(place)) : result);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemGetInfo(free_bytes, total_bytes)
                                            : result);
}

// ---- stream-ordered memory

cudaError_t cudaMallocAsync(void **place, size_t bytes, cudaStream_t stream)
{
    CUdeviceptr addr = 0;
    CUresult result = rt_bind();

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (result == CUDA_SUCCESS && bytes > 0)
        result = cuMemAllocAsync(&addr, bytes, stream);
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)addr;
    return rt_result(result);
}

cudaError_t cudaMallocFromPoolAsync(void **place, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    CUdeviceptr addr = 0;
    CUresult result = rt_bind();

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (result == CUDA_SUCCESS && bytes > 0)
        result = cuMemAllocFromPoolAsync(&addr, bytes, pool, stream);
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)addr;
    return rt_result(result);
}

cudaError_t cudaFreeAsync(void *place, cudaStream_t stream)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemFreeAsync(rt_address(place), stream)
                                            : result);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    CUresult result = rt_start();

    return rt_result(result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, device)
                                            : result);
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    CUresult result = rt_start();

    return rt_result(result == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, device)
                                            : result);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes)
{
    return rt_result(cuMemPoolTrimTo(pool, keep_bytes));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void *value)
{
    return rt_result(
        cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void *value)
{
    return rt_result(
        cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool,
                                 const struct cudaMemAccessDesc *access, size_t count)
{
    return rt_result(cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)access, count));
}

// ---- pinned memory

cudaError_t cudaHostAlloc(void **place, size_t bytes, unsigned flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemHostAlloc(place, bytes, flags)
                                            : result);
}

cudaError_t cudaMallocHost(void **place, size_t bytes)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemHostAlloc(place, bytes, 0) : result);
}

cudaError_t cudaFreeHost(void *place)
{
    CUresult result = rt_bind();

    if (place == NULL)
        return cudaSuccess;
    return rt_result(result == CUDA_SUCCESS ? cuMemFreeHost(place) : result);
}

cudaError_t cudaHostRegister(void *place, size_t bytes, unsigned flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemHostRegister(place, bytes, flags)
                                            : result);
}

cudaError_t cudaHostUnregister(void *place)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemHostUnregister(place) : result);
}

cudaError_t cudaHostGetDevicePointer(void **device_place, void *place, unsigned flags)
{
    CUdeviceptr addr = 0;
    CUresult result = rt_bind();

    if (result == CUDA_SUCCESS)
        result = cuMemHostGetDevicePointer(&addr, place, flags);
    if (result == CUDA_SUCCESS)
        *device_place = (void *)(uintptr_t)addr;
    return rt_result(result);
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *place)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuMemHostGetFlags(flags, place) : result);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *place)
{
    static const enum cudaMemoryType types[] = {
        [OOMPH_SIM_POINTER_UNKNOWN] = cudaMemoryTypeUnregistered,
        [OOMPH_SIM_POINTER_HOST] = cudaMemoryTypeHost,
        [OOMPH_SIM_POINTER_DEVICE] = cudaMemoryTypeDevice,
    };
    int device;

    if (attributes == NULL)
        return rt_error(cudaErrorInvalidValue);
    oomph_sim_pointer_t kind = oomph_sim_pointer_kind(rt_address(place), &device);
    void *same = (void *)(uintptr_t)place;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = types[kind];
    attributes->device =
        kind == OOMPH_SIM_POINTER_UNKNOWN ? cudaInvalidDeviceId : device;
    attributes->devicePointer = kind == OOMPH_SIM_POINTER_UNKNOWN ? NULL : same;
    attributes->hostPointer = kind == OOMPH_SIM_POINTER_DEVICE ? NULL : same;
    return cudaSuccess;
}

// ---- copies: addresses tell where memory lies, whatever `kind` says

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes,
                       enum cudaMemcpyKind kind)
{
    (void)kind;
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS
                         ? cuMemcpy(rt_address(dst), rt_address(src), bytes)
                         : result);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS
            ? cuMemcpyAsync(rt_address(dst), rt_address(src), bytes, stream)
            : result);
}

cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device,
                           size_t bytes)
{
    (void)dst_device;
    (void)src_device;
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS
                         ? cuMemcpy(rt_address(dst), rt_address(src), bytes)
                         : result);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                int src_device, size_t bytes, cudaStream_t stream)
{
    (void)dst_device;
    (void)src_device;
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS
            ? cuMemcpyAsync(rt_address(dst), rt_address(src), bytes, stream)
            : result);
}

static CUDA_MEMCPY2D rows(void *dst, size_t dst_pitch, const void *src,
                          size_t src_pitch, size_t width, size_t height)
{
    return (CUDA_MEMCPY2D){
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = rt_address(dst),
        .dstPitch = dst_pitch,
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = rt_address(src),
        .srcPitch = src_pitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    CUDA_MEMCPY2D copy = rows(dst, dst_pitch, src, src_pitch, width, height);
    CUresult result = rt_bind();

    (void)kind;
    return rt_result(result == CUDA_SUCCESS ? cuMemcpy2D(&copy) : result);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                              size_t src_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDA_MEMCPY2D copy = rows(dst, dst_pitch, src, src_pitch, width, height);
    CUresult result = rt_bind();

    (void)kind;
    return rt_result(result == CUDA_SUCCESS ? cuMemcpy2DAsync(&copy, stream) : result);
}

cudaError_t cudaMemset(void *place, int value, size_t bytes)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS
                         ? cuMemsetD8(rt_address(place), (unsigned char)value, bytes)
                         : result);
}

cudaError_t cudaMemsetAsync(void *place, int value, size_t bytes, cudaStream_t stream)
{
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS
            ? cuMemsetD8Async(rt_address(place), (unsigned char)value, bytes, stream)
            : result);
}

cudaError_t cudaMemset2DAsync(void *place, size_t pitch, int value, size_t width,
                              size_t height, cudaStream_t stream)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS
                         ? cuMemsetD2D8Async(rt_address(place), pitch,
                                             (unsigned char)value, width, height,
                                             stream)
                         : result);
}
