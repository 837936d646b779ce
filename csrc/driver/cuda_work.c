#include "driver/cuda_work.h"

#include "driver/cuda.h"

/* ---- Streams and events */

static oomph_status_t make_stream(CUstream *stream)
{
    return oomph_cuda_check(oomph_cu.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
}

oomph_status_t oomph_cuda_stream_id(int device, oomph_stream_t stream, uint64_t *id)
{
    unsigned long long value = 0;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status =
            oomph_cuda_check(oomph_cu.cuStreamGetId(stream, &value), "cuStreamGetId");
    if (scope.status == OOMPH_OK)
        *id = value;
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_stream_captures(int device, oomph_stream_t stream,
                                          bool *captures)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope)) {
        CUresult result = oomph_cu.cuStreamIsCapturing(stream, &state);
        // The legacy stream while a stream that it would wait for captures.
        if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
            state = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        else
            scope.status = oomph_cuda_check(result, "cuStreamIsCapturing");
    }
    if (scope.status == OOMPH_OK)
        *captures = state != CU_STREAM_CAPTURE_STATUS_NONE;
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_stream_create(int device, oomph_stream_t *stream)
{
    CUstream made = NULL;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = make_stream(&made);
    if (scope.status == OOMPH_OK)
        *stream = made;
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_event_create(int device, oomph_event_t *event)
{
    CUevent made = NULL;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(
            oomph_cu.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    if (scope.status == OOMPH_OK)
        *event = (oomph_event_t)made;
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_event_destroy(int device, oomph_event_t event)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status =
            oomph_cuda_check(oomph_cuda_undone(oomph_cu.cuEventDestroy((CUevent)event)),
                             "cuEventDestroy");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_event_record(int device, oomph_event_t event,
                                       oomph_stream_t stream)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(oomph_cu.cuEventRecord((CUevent)event, stream),
                                        "cuEventRecord");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_event_record_all(int device, oomph_event_t event)
{
    CUcontext context = NULL;
    oomph_cuda_scope_t scope;

    if (oomph_cu.cuCtxRecordEvent == NULL)
        return oomph_fail(OOMPH_ERR_STATE, "the CUDA driver has no cuCtxRecordEvent");
    if (oomph_cuda_enter(device, &scope))
        scope.status =
            oomph_cuda_check(oomph_cu.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    if (scope.status == OOMPH_OK)
        scope.status = oomph_cuda_check(
            oomph_cu.cuCtxRecordEvent(context, (CUevent)event), "cuCtxRecordEvent");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_stream_wait(int device, oomph_stream_t stream,
                                      oomph_event_t event)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(
            oomph_cu.cuStreamWaitEvent(stream, (CUevent)event, 0), "cuStreamWaitEvent");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_event_passed(int device, oomph_event_t event, bool *passed)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope)) {
        CUresult result = oomph_cu.cuEventQuery((CUevent)event);
        *passed = result == CUDA_SUCCESS;
        if (result != CUDA_ERROR_NOT_READY)
            scope.status = oomph_cuda_check(result, "cuEventQuery");
    }
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_event_wait(int device, oomph_event_t event)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(oomph_cu.cuEventSynchronize((CUevent)event),
                                        "cuEventSynchronize");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_drain(int device)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status =
            oomph_cuda_check(oomph_cu.cuCtxSynchronize(), "cuCtxSynchronize");
    return oomph_cuda_leave(&scope);
}

/* ---- Copying, measuring and trimming */

// Waits also where a copy failed: those before it must not run on.
oomph_status_t oomph_cuda_copy_all(int device, const oomph_copy_t *copies, size_t count)
{
    CUstream stream = NULL;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = make_stream(&stream);
    if (scope.status != OOMPH_OK)
        return oomph_cuda_leave(&scope);
    for (size_t i = 0; i < count && scope.status == OOMPH_OK; i++)
        scope.status =
            oomph_cuda_check(oomph_cu.cuMemcpyAsync(copies[i].to, copies[i].from,
                                                    copies[i].bytes, stream),
                             "cuMemcpyAsync");
    CUresult waited = oomph_cu.cuStreamSynchronize(stream);
    if (scope.status == OOMPH_OK)
        scope.status = oomph_cuda_check(waited, "cuStreamSynchronize");
    oomph_cu.cuStreamDestroy(stream);
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_fill(int device, oomph_addr_t addr, size_t bytes,
                               oomph_stream_t stream)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(
            oomph_cu.cuMemsetD32Async(addr, UINT32_MAX, bytes / 4, stream),
            "cuMemsetD32Async");
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_copy(int device, oomph_addr_t to, oomph_addr_t from,
                               size_t bytes, oomph_stream_t stream)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(oomph_cu.cuMemcpyAsync(to, from, bytes, stream),
                                        "cuMemcpyAsync");
    return oomph_cuda_leave(&scope);
}

static oomph_status_t timed_copies(CUstream stream, const CUevent event[2],
                                   oomph_addr_t to, oomph_addr_t from, size_t bytes,
                                   int count, int64_t *ns)
{
    float milliseconds = 0;
    CUresult result = oomph_cu.cuEventRecord(event[0], stream);

    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = oomph_cu.cuMemcpyAsync(to, from, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = oomph_cu.cuEventRecord(event[1], stream);
    if (result == CUDA_SUCCESS)
        result = oomph_cu.cuEventSynchronize(event[1]);
    if (result == CUDA_SUCCESS)
        result = oomph_cu.cuEventElapsedTime(&milliseconds, event[0], event[1]);
    if (result != CUDA_SUCCESS)
        return oomph_cuda_check(result, "a timed copy");
    if (milliseconds <= 0)
        return oomph_fail(OOMPH_ERR_DRIVER, "a timed copy took no time");
    *ns = (int64_t)((double)milliseconds * 1e6);
    return OOMPH_OK;
}

oomph_status_t oomph_cuda_time_copy(int device, oomph_addr_t to, oomph_addr_t from,
                                    size_t bytes, int count, int64_t *ns)
{
    CUevent event[2] = {NULL, NULL};
    CUstream stream = NULL;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = make_stream(&stream);
    for (int i = 0; i < 2 && scope.status == OOMPH_OK; i++)
        scope.status = oomph_cuda_check(
            oomph_cu.cuEventCreate(&event[i], CU_EVENT_DEFAULT), "cuEventCreate");
    if (scope.status == OOMPH_OK) // once before, so that only the copies are measured
        scope.status = timed_copies(stream, event, to, from, bytes, 1, ns);
    if (scope.status == OOMPH_OK)
        scope.status = timed_copies(stream, event, to, from, bytes, count, ns);
    for (int i = 0; i < 2; i++)
        if (event[i] != NULL)
            oomph_cu.cuEventDestroy(event[i]);
    if (stream != NULL)
        oomph_cu.cuStreamDestroy(stream);
    return oomph_cuda_leave(&scope);
}

oomph_status_t oomph_cuda_trim(int device)
{
    CUdevice handle = 0;
    CUmemoryPool pool = NULL;
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status =
            oomph_cuda_check(oomph_cu.cuDeviceGet(&handle, device), "cuDeviceGet");
    if (scope.status == OOMPH_OK)
        scope.status =
            oomph_cuda_check(oomph_cu.cuDeviceGetDefaultMemPool(&pool, handle),
                             "cuDeviceGetDefaultMemPool");
    if (scope.status == OOMPH_OK)
        scope.status =
            oomph_cuda_check(oomph_cu.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    return oomph_cuda_leave(&scope);
}
