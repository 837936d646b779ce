/* copy.c - copies of memory. */
#include "libcuda/engine/engine.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/submit.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/memory/pinned.h"
#include "libcuda/memory/shadow.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/objects/operator.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "sim.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// Memory at one end of a copy, in rows.
typedef struct area {
    uint64_t addr, pitch;
} area_t;

static __thread uint64_t fake_readback; // what copies to the host give this thread
static _Atomic uint64_t guess_count;

uint64_t oomph_sim_fake_readback(uint64_t value)
{
    uint64_t before = fake_readback;

    fake_readback = value;
    return before;
}

uint64_t oomph_sim_matches(uint64_t elements)
{
    atomic_fetch_add(&guess_count, 1);
    double matches = sim_config.matches * (double)elements;
    uint64_t whole = (uint64_t)matches;

    return whole + ((double)whole < matches);
}

uint64_t oomph_sim_guess_count(void)
{
    return atomic_load(&guess_count);
}

static uint64_t from_pointer(const void *place)
{
    return (uint64_t)(uintptr_t)place;
}

static area_t in_one_row(uint64_t addr)
{
    return (area_t){.addr = addr};
}

// Neither the devices' memory nor pinned: the device cannot reach it by itself.
static bool is_pageable(uint64_t addr)
{
    return sim_space_find(addr) == NULL && sim_pinned_find(addr) == NULL;
}

// What is wrong already when a call is made is the call's error; what goes wrong later
// is a fault of the device.
static CUresult check_area(area_t area, uint64_t bytes, uint64_t rows, int device,
                           bool write)
{
    uint64_t bad;

    for (uint64_t row = 0; row < rows; row++) {
        uint64_t addr = area.addr + row * area.pitch;
        switch (sim_space_check(addr, bytes, device, write, &bad)) {
        case SIM_CHECK_NOT_MAPPED:
            return sim_misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not mapped",
                              (unsigned long long)bad);
        case SIM_CHECK_NO_ACCESS:
            return sim_misuse(CUDA_ERROR_INVALID_VALUE, "device %d may not %s %#llx",
                              device, write ? "write" : "read",
                              (unsigned long long)bad);
        default:
            break;
        }
    }
    return CUDA_SUCCESS;
}

// Pageable bytes are read before the call returns, into one dense block.
static bool stage(sim_work_t *work)
{
    char *staging = malloc(work->rows * work->bytes);

    if (staging == NULL)
        return false;
    for (uint64_t row = 0; row < work->rows; row++)
        memcpy(staging + row * work->bytes,
               (const void *)(uintptr_t)(work->src + row * work->src_pitch),
               work->bytes);
    work->staging = staging;
    work->src_pitch = work->bytes;
    return true;
}

// Prepares what depends on where the source lies. Only bytes that are kept need that.
static bool prepare_source(sim_work_t *work)
{
    bool is_kept = sim_memory_is_real() || sim_space_has_bytes(work->dst) ||
                   work->rows * work->bytes <= SIM_SHADOW_COPY_MAX;

    work->is_read = is_pageable(work->src);
    if (!is_kept || sim_space_find(work->src) != NULL)
        return true;
    if (work->is_read)
        return stage(work);
    // What the device itself writes there meanwhile is in the order of its streams.
    if (work->rows == 1 && sim_memory_is_real() &&
        !sim_pending_writes(work->src, work->bytes))
        work->checksum = sim_checksum((const void *)(uintptr_t)work->src, work->bytes);
    return true;
}

static CUresult submit_copy(CUstream stream, sim_work_t *work, bool blocking)
{
    sim_ticket_t ticket;
    int device = stream->context->device;
    bool waits = blocking || is_pageable(work->dst);

    if (stream->capture != NULL) // checked when the graph runs
        return sim_queue_submit(stream, work, NULL);
    CUresult result = check_area((area_t){work->src, work->src_pitch}, work->bytes,
                                 work->rows, device, false);
    if (result == CUDA_SUCCESS)
        result = check_area((area_t){work->dst, work->dst_pitch}, work->bytes,
                            work->rows, device, true);
    if (result != CUDA_SUCCESS)
        return result;
    if (!waits && !prepare_source(work))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = sim_queue_submit(stream, work, &ticket);
    if (result == CUDA_SUCCESS && waits) {
        sim_queue_wait(ticket);
        result = stream->context->sticky;
    }
    return result;
}

static CUresult copy_rows(area_t dst, area_t src, size_t bytes, size_t rows,
                          CUstream handle, bool blocking)
{
    CUcontext context;
    CUstream stream;
    sim_work_t work = {
        .kind = SIM_WORK_COPY,
        .call = sim_current_call(),
        .cost_ns = SIM_COPY_START_NS,
        .dst = dst.addr,
        .src = src.addr,
        .bytes = bytes,
        .rows = rows,
        .dst_pitch = dst.pitch,
        .src_pitch = src.pitch,
        .value = bytes == 1 ? fake_readback != 0 : fake_readback,
        .is_part = sim_is_behind_kernels(),
        .is_dry = sim_is_dry(),
    };
    CUresult result = sim_context_usable(&context);

    if (result == CUDA_SUCCESS && blocking)
        result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS || bytes == 0 || rows == 0)
        return result;
    if (dst.addr == 0 || src.addr == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (work.is_dry && sim_space_find(dst.addr) == NULL)
        sim_count_dry_read();
    return submit_copy(stream, &work, blocking);
}

static CUresult copy_now(const char *function, uint64_t dst, uint64_t src, size_t bytes)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS)
        result = copy_rows(in_one_row(dst), in_one_row(src), bytes, 1, NULL, true);
    return sim_leave(result, "%#llx, %#llx, %zu", (unsigned long long)dst,
                     (unsigned long long)src, bytes);
}

static CUresult copy_later(const char *function, uint64_t dst, uint64_t src,
                           size_t bytes, CUstream stream)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS)
        result = copy_rows(in_one_row(dst), in_one_row(src), bytes, 1, stream, false);
    return sim_leave(result, "%#llx, %#llx, %zu, %p", (unsigned long long)dst,
                     (unsigned long long)src, bytes, (void *)stream);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return copy_now(__func__, dst, src, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
    return copy_now(__func__, dst, from_pointer(src), bytes);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
    return copy_now(__func__, from_pointer(dst), src, bytes);
}

// Within and between devices the call returns before the copy is done.
CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return copy_later(__func__, dst, src, bytes, NULL);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                      CUcontext src_context, size_t bytes)
{
    (void)dst_context;
    (void)src_context;
    return copy_later(__func__, dst, src, bytes, NULL);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    return copy_later(__func__, dst, src, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes,
                              CUstream stream)
{
    return copy_later(__func__, dst, from_pointer(src), bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    return copy_later(__func__, from_pointer(dst), src, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                              CUstream stream)
{
    return copy_later(__func__, dst, src, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                           CUcontext src_context, size_t bytes, CUstream stream)
{
    (void)dst_context;
    (void)src_context;
    return copy_later(__func__, dst, src, bytes, stream);
}

// ---- rows

static bool find_area(CUmemorytype type, const void *host, CUdeviceptr device,
                      size_t pitch, size_t x_bytes, size_t y, area_t *area)
{
    if (type == CU_MEMORYTYPE_ARRAY)
        return false;
    uint64_t base = type == CU_MEMORYTYPE_HOST ? from_pointer(host) : device;
    *area = (area_t){.addr = base + y * pitch + x_bytes, .pitch = pitch};
    return true;
}

static CUresult copy_areas(const CUDA_MEMCPY2D *copy, CUstream stream, bool blocking)
{
    area_t dst, src;

    if (!find_area(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch,
                   copy->dstXInBytes, copy->dstY, &dst) ||
        !find_area(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch,
                   copy->srcXInBytes, copy->srcY, &src))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (copy->Height > 1 &&
        (dst.pitch < copy->WidthInBytes || src.pitch < copy->WidthInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_rows(dst, src, copy->WidthInBytes, copy->Height, stream, blocking);
}

static CUresult copy_2d(const char *function, const CUDA_MEMCPY2D *copy,
                        CUstream stream, bool blocking)
{
    CUresult result = sim_enter_checked(function, copy != NULL);

    if (result == CUDA_SUCCESS)
        result = copy_areas(copy, stream, blocking);
    return sim_leave(result, "%p, %p", (const void *)copy, (void *)stream);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
    return copy_2d(__func__, copy, NULL, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
    return copy_2d(__func__, copy, NULL, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    return copy_2d(__func__, copy, stream, false);
}
