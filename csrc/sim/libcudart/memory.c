/* memory.c - memory of devices, pinned memory, copies. */
#include "rt.h"

#include <string.h>

// The program gets the address that a call was to find.
static CUresult give(void **place, const CUdeviceptr *addr, CUresult result)
{
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)*addr;
    return result;
}

// ---- device memory

cudaError_t cudaMalloc(void **place, size_t bytes)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    return RT_BOUND(
        give(place, &addr, bytes > 0 ? cuMemAlloc(&addr, bytes) : CUDA_SUCCESS));
}

cudaError_t cudaFree(void *place)
{
    return RT_BOUND(cuMemFree(rt_address(place)));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return RT_BOUND(cuMemGetInfo(free_bytes, total_bytes));
}

// ---- stream-ordered memory

cudaError_t cudaMallocAsync(void **place, size_t bytes, cudaStream_t stream)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    return RT_BOUND(
        give(place, &addr,
             bytes > 0 ? cuMemAllocAsync(&addr, bytes, stream) : CUDA_SUCCESS));
}

cudaError_t cudaMallocFromPoolAsync(void **place, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    return RT_BOUND(give(place, &addr,
                         bytes > 0 ? cuMemAllocFromPoolAsync(&addr, bytes, pool, stream)
                                   : CUDA_SUCCESS));
}

cudaError_t cudaFreeAsync(void *place, cudaStream_t stream)
{
    return RT_BOUND(cuMemFreeAsync(rt_address(place), stream));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    return RT_STARTED(cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    return RT_STARTED(cuDeviceGetMemPool(pool, device));
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

// ---- managed memory; what CUDA 12 and 13 call otherwise is in variants.c

cudaError_t cudaMallocManaged(void **place, size_t bytes, unsigned flags)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    return RT_BOUND(give(place, &addr, cuMemAllocManaged(&addr, bytes, flags)));
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *place, size_t bytes,
                                     unsigned flags)
{
    return RT_BOUND(cuStreamAttachMemAsync(stream, rt_address(place), bytes, flags));
}

// ---- pinned memory

cudaError_t cudaHostAlloc(void **place, size_t bytes, unsigned flags)
{
    return RT_BOUND(cuMemHostAlloc(place, bytes, flags));
}

cudaError_t cudaMallocHost(void **place, size_t bytes)
{
    return cudaHostAlloc(place, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *place)
{
    return RT_BOUND(place != NULL ? cuMemFreeHost(place) : CUDA_SUCCESS);
}

cudaError_t cudaHostRegister(void *place, size_t bytes, unsigned flags)
{
    return RT_BOUND(cuMemHostRegister(place, bytes, flags));
}

cudaError_t cudaHostUnregister(void *place)
{
    return RT_BOUND(cuMemHostUnregister(place));
}

cudaError_t cudaHostGetDevicePointer(void **device_place, void *place, unsigned flags)
{
    CUdeviceptr addr = 0;

    return RT_BOUND(
        give(device_place, &addr, cuMemHostGetDevicePointer(&addr, place, flags)));
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *place)
{
    return RT_BOUND(cuMemHostGetFlags(flags, place));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *place)
{
    static const enum cudaMemoryType types[] = {
        [OOMPH_SIM_POINTER_UNKNOWN] = cudaMemoryTypeUnregistered,
        [OOMPH_SIM_POINTER_HOST] = cudaMemoryTypeHost,
        [OOMPH_SIM_POINTER_DEVICE] = cudaMemoryTypeDevice,
        [OOMPH_SIM_POINTER_MANAGED] = cudaMemoryTypeManaged,
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

// ---- copies: addresses say where memory lies, whatever `kind` says

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes,
                       enum cudaMemcpyKind kind)
{
    (void)kind;
    return RT_BOUND(cuMemcpy(rt_address(dst), rt_address(src), bytes));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    return RT_BOUND(cuMemcpyAsync(rt_address(dst), rt_address(src), bytes, stream));
}

cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device,
                           size_t bytes)
{
    (void)dst_device;
    (void)src_device;
    return cudaMemcpy(dst, src, bytes, cudaMemcpyDefault);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                int src_device, size_t bytes, cudaStream_t stream)
{
    (void)dst_device;
    (void)src_device;
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream);
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

    (void)kind;
    return RT_BOUND(cuMemcpy2D(&copy));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                              size_t src_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDA_MEMCPY2D copy = rows(dst, dst_pitch, src, src_pitch, width, height);

    (void)kind;
    return RT_BOUND(cuMemcpy2DAsync(&copy, stream));
}

cudaError_t cudaMemset(void *place, int value, size_t bytes)
{
    return RT_BOUND(cuMemsetD8(rt_address(place), (unsigned char)value, bytes));
}

cudaError_t cudaMemsetAsync(void *place, int value, size_t bytes, cudaStream_t stream)
{
    return RT_BOUND(
        cuMemsetD8Async(rt_address(place), (unsigned char)value, bytes, stream));
}

cudaError_t cudaMemset2DAsync(void *place, size_t pitch, int value, size_t width,
                              size_t height, cudaStream_t stream)
{
    return RT_BOUND(cuMemsetD2D8Async(rt_address(place), pitch, (unsigned char)value,
                                      width, height, stream));
}
