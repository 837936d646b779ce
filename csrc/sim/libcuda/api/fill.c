/* fill.c - fills of memory with a value. */
#include "libcuda/engine/engine.h"
#include "libcuda/engine/submit.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/objects/operator.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

// A value of 1, 2 or 4 bytes, to be repeated.
typedef struct value {
    uint64_t bits;
    unsigned bytes;
} value_t;

static CUresult check_destination(const sim_work_t *work, CUstream stream)
{
    uint64_t bad;

    if (sim_space_find(work->dst) == NULL)
        return CUDA_SUCCESS;
    for (uint64_t row = 0; row < work->rows; row++) {
        if (sim_space_check(work->dst + row * work->dst_pitch, work->bytes,
                            stream->context->device, true, &bad) != SIM_CHECK_GOOD)
            return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                              "%#llx is not mapped, or device %d may not write it",
                              (unsigned long long)bad, stream->context->device);
    }
    return CUDA_SUCCESS;
}

static CUresult fill_rows(CUdeviceptr dst, size_t pitch, value_t value, size_t width,
                          size_t height, CUstream handle, bool blocking)
{
    CUcontext context;
    CUstream stream;
    sim_ticket_t ticket;
    const sim_work_t work = {
        .kind = SIM_WORK_SET,
        .call = sim_current_call(),
        .cost_ns = SIM_COPY_START_NS,
        .dst = dst,
        .bytes = width * value.bytes,
        .rows = height,
        .dst_pitch = pitch,
        .value = value.bits,
        .value_bytes = value.bytes,
        // PyTorch's own host code fills bytes; wider values are others'.
        .is_dry = value.bytes == 1 && sim_is_dry(),
    };
    CUresult result = sim_context_usable(&context);

    if (result == CUDA_SUCCESS && blocking)
        result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS || width == 0 || height == 0)
        return result;
    if (dst == 0 || dst % value.bytes != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL)
        return sim_queue_submit(stream, &work, NULL);
    result = check_destination(&work, stream);
    if (result == CUDA_SUCCESS)
        result = sim_queue_submit(stream, &work, &ticket);
    if (result == CUDA_SUCCESS && blocking) {
        sim_queue_wait(ticket);
        result = context->sticky;
    }
    return result;
}

static CUresult fill_now(const char *function, CUdeviceptr dst, value_t value,
                         size_t count)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS)
        result = fill_rows(dst, 0, value, count, 1, NULL, true);
    return sim_leave(result, "%#llx, %u, %zu", dst, (unsigned)value.bits, count);
}

static CUresult fill_later(const char *function, CUdeviceptr dst, value_t value,
                           size_t count, CUstream stream)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS)
        result = fill_rows(dst, 0, value, count, 1, stream, false);
    return sim_leave(result, "%#llx, %u, %zu, %p", dst, (unsigned)value.bits, count,
                     (void *)stream);
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count)
{
    return fill_now(__func__, dst, (value_t){value, 1}, count);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                         CUstream stream)
{
    return fill_later(__func__, dst, (value_t){value, 1}, count, stream);
}

CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t count)
{
    return fill_now(__func__, dst, (value_t){value, 2}, count);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count,
                          CUstream stream)
{
    return fill_later(__func__, dst, (value_t){value, 2}, count, stream);
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned value, size_t count)
{
    return fill_now(__func__, dst, (value_t){value, 4}, count);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count,
                          CUstream stream)
{
    return fill_later(__func__, dst, (value_t){value, 4}, count, stream);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char value,
                         size_t width, size_t height)
{
    return SIM_CALL(
        fill_rows(dst, pitch, (value_t){value, 1}, width, height, NULL, true),
        "%#llx, %zu, %u, %zu, %zu", dst, pitch, (unsigned)value, width, height);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value,
                           size_t width, size_t height, CUstream stream)
{
    return SIM_CALL(
        fill_rows(dst, pitch, (value_t){value, 1}, width, height, stream, false),
        "%#llx, %zu, %u, %zu, %zu, %p", dst, pitch, (unsigned)value, width, height,
        (void *)stream);
}
