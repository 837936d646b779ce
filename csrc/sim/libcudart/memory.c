/* memory.c - memory of devices, pinned memory, copies. */
#include "rt.h"

#include <string.h>

// Ends a call that was to find an address: the program gets it, and the result.
static cudaError_t give(void **place, const CUdeviceptr *addr, CUresult result)
{
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)*addr;
    return rt_result(result);
}

// ---- device memory

cudaError_t cudaMalloc(void **place, size_t bytes)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!rt_bind())
        return cudaPeekAtLastError();
    return give(place, &addr, bytes > 0 ? cuMemAlloc(&addr, bytes) : CUDA_SUCCESS);
}

cudaError_t cudaFree(void *place)
{
    return rt_bind() ? rt_result(cuMemFree(rt_address(place))) : cudaPeekAtLastError();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return rt_bind() ? rt_result(cuMemGetInfo(free_bytes, total_bytes))
                     : cudaPeekAtLastError();
}

// ---- stream-ordered memory

cudaError_t cudaMallocAsync(void **place, size_t bytes, cudaStream_t stream)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!rt_bind())
        return cudaPeekAtLastError();
    return give(place, &addr,
                bytes > 0 ? cuMemAllocAsync(&addr, bytes, stream) : CUDA_SUCCESS);
}

cudaError_t cudaMallocFromPoolAsync(void **place, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!rt_bind())
        return cudaPeekAtLastError();
    return give(place, &addr,
                bytes > 0 ? cuMemAllocFromPoolAsync(&addr, bytes, pool, stream)
                          : CUDA_SUCCESS);
}

cudaError_t cudaFreeAsync(void *place, cudaStream_t stream)
{
    return rt_bind() ? rt_result(cuMemFreeAsync(rt_address(place), stream))
                     : cudaPeekAtLastError();
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    return rt_start() ? rt_result(cuDeviceGetDefaultMemPool(pool, device))
                      : cudaPeekAtLastError();
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    return rt_start() ? rt_result(cuDeviceGetMemPool(pool, device))
                      : cudaPeekAtLastError();
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
    return rt_bind() ? rt_result(cuMemHostAlloc(place, bytes, flags))
                     : cudaPeekAtLastError();
}

cudaError_t cudaMallocHost(void **place, size_t bytes)
{
    return cudaHostAlloc(place, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *place)
{
    if (!rt_bind())
        return cudaPeekAtLastError();
    return place != NULL ? rt_result(cuMemFreeHost(place)) : cudaSuccess;
}

cudaError_t cudaHostRegister(void *place, size_t bytes, unsigned flags)
{
    return rt_bind() ? rt_result(cuMemHostRegister(place, bytes, flags))
                     : cudaPeekAtLastError();
}

cudaError_t cudaHostUnregister(void *place)
{
    return rt_bind() ? rt_result(cuMemHostUnregister(place)) : cudaPeekAtLastError();
}

cudaError_t cudaHostGetDevicePointer(void **device_place, void *place, unsigned flags)
{
    CUdeviceptr addr = 0;

    if (!rt_bind())
        return cudaPeekAtLastError();
    return give(device_place, &addr, cuMemHostGetDevicePointer(&addr, place, flags));
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *place)
{
    return rt_bind() ? rt_result(cuMemHostGetFlags(flags, place))
                     : cudaPeekAtLastError();
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
    return rt_bind() ? rt_result(cuMemcpy(rt_address(dst), rt_address(src), bytes))
                     : cudaPeekAtLastError();
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    return rt_bind() ? rt_result(cuMemcpyAsync(rt_address(dst), rt_address(src), bytes,
                                               stream))
                     : cudaPeekAtLastError();
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
    return rt_bind() ? rt_result(cuMemcpy2D(&copy)) : cudaPeekAtLastError();
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                              size_t src_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDA_MEMCPY2D copy = rows(dst, dst_pitch, src, src_pitch, width, height);

    (void)kind;
    return rt_bind() ? rt_result(cuMemcpy2DAsync(&copy, stream))
                     : cudaPeekAtLastError();
}

cudaError_t cudaMemset(void *place, int value, size_t bytes)
{
    return rt_bind()
               ? rt_result(cuMemsetD8(rt_address(place), (unsigned char)value, bytes))
               : cudaPeekAtLastError();
}

cudaError_t cudaMemsetAsync(void *place, int value, size_t bytes, cudaStream_t stream)
{
    return rt_bind() ? rt_result(cuMemsetD8Async(rt_address(place),
                                                 (unsigned char)value, bytes, stream))
                     : cudaPeekAtLastError();
}

cudaError_t cudaMemset2DAsync(void *place, size_t pitch, int value, size_t width,
                              size_t height, cudaStream_t stream)
{
    return rt_bind() ? rt_result(cuMemsetD2D8Async(rt_address(place), pitch,
                                                   (unsigned char)value, width, height,
                                                   stream))
                     : cudaPeekAtLastError();
}
