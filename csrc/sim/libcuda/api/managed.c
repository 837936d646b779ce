/* managed.c - managed memory, which is on the host or on a device, as the driver likes.
 *
 * Here it is on the host until a program prefetches it; then it takes memory of the
 * device, as far as that has some, until something else needs that. A buffer moves as a
 * whole. The host reads and writes it where it is, in no time; so do kernels.
 */
#include "libcuda/engine/engine.h"
#include "libcuda/engine/submit.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/memory/pinned.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

// The managed buffer that holds the range, or NULL.
static sim_pinned_t *find(CUdeviceptr addr, size_t bytes)
{
    sim_pinned_t *buffer = sim_pinned_find(addr);

    if (buffer == NULL || buffer->kind != SIM_PINNED_MANAGED || bytes == 0 ||
        bytes > buffer->range.base + buffer->range.bytes - addr)
        return NULL;
    return buffer;
}

// ---- allocating

static CUresult allocate(CUdeviceptr *addr, size_t bytes, unsigned flags)
{
    CUcontext context;
    void *place;

    if (addr == NULL || bytes == 0 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result = sim_pinned_allocate(context, bytes, SIM_PINNED_MANAGED, 0, &place);
    if (result == CUDA_SUCCESS)
        *addr = (CUdeviceptr)(uintptr_t)place;
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *addr, size_t bytes, unsigned flags)
{
    return SIM_CALL(allocate(addr, bytes, flags), "%#llx, %zu, %u",
                    result == CUDA_SUCCESS ? *addr : 0, bytes, flags);
}

// ---- moving

static CUresult prefetch(CUdeviceptr addr, size_t bytes, CUmemLocation to,
                         CUstream handle)
{
    sim_work_t work = {
        .kind = SIM_WORK_MOVE,
        .call = sim_current_call(),
        .cost_ns = SIM_COPY_START_NS,
        .writes = to.type == CU_MEM_LOCATION_TYPE_DEVICE,
    };
    const CUcontext device = work.writes ? sim_device(to.id) : NULL;
    sim_pinned_t *buffer = find(addr, bytes);
    CUstream stream;

    if (buffer == NULL || (work.writes && device == NULL) ||
        to.type == CU_MEM_LOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture != NULL)
        return sim_capture_refuse(stream);
    if (work.writes ? sim_device_welcome(device, &buffer->guest)
                    : sim_device_dismiss(&buffer->guest))
        work.value = buffer->range.bytes;
    return sim_queue_submit(stream, &work, NULL);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr addr, size_t bytes, CUmemLocation to,
                               unsigned flags, CUstream stream)
{
    return SIM_CALL(flags == 0 ? prefetch(addr, bytes, to, stream)
                               : CUDA_ERROR_INVALID_VALUE,
                    "%#llx, %zu, %d, %p", addr, bytes, to.id, (void *)stream);
}

CUresult cuMemPrefetchAsync(CUdeviceptr addr, size_t bytes, CUdevice to,
                            CUstream stream)
{
    const CUmemLocation location = {
        .type = to == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
                                    : CU_MEM_LOCATION_TYPE_DEVICE,
        .id = to,
    };

    return SIM_CALL(prefetch(addr, bytes, location, stream), "%#llx, %zu, %d, %p", addr,
                    bytes, to, (void *)stream);
}

// ---- advice, which changes nothing here

static CUresult advise(CUdeviceptr addr, size_t bytes)
{
    return find(addr, bytes) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise_v2(CUdeviceptr addr, size_t bytes, CUmem_advise advice,
                        CUmemLocation location)
{
    return SIM_CALL(advise(addr, bytes), "%#llx, %zu, %d, %d", addr, bytes, (int)advice,
                    location.id);
}

CUresult cuMemAdvise(CUdeviceptr addr, size_t bytes, CUmem_advise advice,
                     CUdevice device)
{
    return SIM_CALL(advise(addr, bytes), "%#llx, %zu, %d, %d", addr, bytes, (int)advice,
                    device);
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr addr, size_t bytes,
                                unsigned flags)
{
    return SIM_CALL(advise(addr, bytes > 0 ? bytes : 1), "%p, %#llx, %zu, %u",
                    (void *)stream, addr, bytes, flags);
}
