/* pinned.c - the calls that allocate or register host memory for devices. */
#include "libcuda/memory/pinned.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/objects/stream.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

static CUresult allocate(void **place, size_t bytes, unsigned flags)
{
    CUcontext context;

    if (place == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result = sim_context_usable(&context);
    return result == CUDA_SUCCESS
               ? sim_pinned_allocate(context, bytes, SIM_PINNED_ALLOCATED, flags, place)
               : result;
}

CUresult cuMemHostAlloc(void **place, size_t bytes, unsigned flags)
{
    return SIM_CALL(allocate(place, bytes, flags), "%p, %zu, %u",
                    result == CUDA_SUCCESS ? *place : NULL, bytes, flags);
}

CUresult cuMemAllocHost_v2(void **place, size_t bytes)
{
    return SIM_CALL(allocate(place, bytes, 0), "%p, %zu",
                    result == CUDA_SUCCESS ? *place : NULL, bytes);
}

// Work that still uses the buffer finishes first, though the program should have seen
// to that.
static void finish_users(const sim_pinned_t *buffer)
{
    uint64_t base = buffer->range.base, bytes = buffer->range.bytes;
    const sim_operation_t *user = sim_pending_find_user(base, bytes, NULL);

    if (user != NULL)
        sim_misuse(CUDA_SUCCESS, "the pinned buffer at %#llx is in use by a pending %s",
                   (unsigned long long)base, user->work.call);
    while ((user = sim_pending_find_user(base, bytes, NULL)) != NULL)
        sim_queue_wait((sim_ticket_t){.stream = user->stream, .number = user->number});
}

static CUresult remove_buffer(void *place, sim_pinned_kind_t kind, CUresult unknown)
{
    sim_pinned_t *buffer = sim_pinned_find((uint64_t)(uintptr_t)place);

    if (buffer == NULL || buffer->range.base != (uint64_t)(uintptr_t)place ||
        buffer->kind != kind)
        return sim_misuse(unknown, "%p is no such buffer, or was given back before",
                          place);
    CUresult result = sim_capture_forbid();
    if (result != CUDA_SUCCESS)
        return result;
    finish_users(buffer);
    if (sim_pinned_find((uint64_t)(uintptr_t)place) != buffer)
        return unknown; // the lock was given away meanwhile
    sim_pinned_remove(buffer);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *place)
{
    return SIM_CALL(
        remove_buffer(place, SIM_PINNED_ALLOCATED, CUDA_ERROR_INVALID_VALUE), "%p",
        place);
}

static CUresult register_buffer(void *place, size_t bytes, unsigned flags)
{
    uint64_t addr = (uint64_t)(uintptr_t)place;
    CUcontext context;

    if (place == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_pinned_overlaps(addr, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (sim_space_find(addr) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result = sim_context_usable(&context);
    return result == CUDA_SUCCESS
               ? sim_pinned_add(context, place, bytes, SIM_PINNED_REGISTERED, flags)
               : result;
}

CUresult cuMemHostRegister_v2(void *place, size_t bytes, unsigned flags)
{
    return SIM_CALL(register_buffer(place, bytes, flags), "%p, %zu, %u", place, bytes,
                    flags);
}

CUresult cuMemHostUnregister(void *place)
{
    return SIM_CALL(remove_buffer(place, SIM_PINNED_REGISTERED,
                                  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
                    "%p", place);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *addr, void *place, unsigned flags)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS && (addr == NULL || flags != 0 ||
                                   sim_pinned_find((uint64_t)(uintptr_t)place) == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *addr = (CUdeviceptr)(uintptr_t)place;
    return sim_leave(result, "%p, %u", place, flags);
}

CUresult cuMemHostGetFlags(unsigned *flags, void *place)
{
    CUresult result = sim_enter(__func__);
    const sim_pinned_t *buffer = sim_pinned_find((uint64_t)(uintptr_t)place);

    if (result == CUDA_SUCCESS && (flags == NULL || buffer == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = buffer->flags;
    return sim_leave(result, "%p", place);
}
