#include "event.h"

#include "call.h"
#include "queue.h"

static sim_slab_t events = {.object_bytes = sizeof(struct CUevent_st)};

static CUresult check(CUevent event)
{
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_is_live(&event->object))
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE, "event %p was destroyed",
                          (void *)event);
    return CUDA_SUCCESS;
}

void sim_event_complete(CUevent event, uint32_t generation, uint64_t now_ns)
{
    if (event->object.generation == generation)
        event->end_ns = now_ns;
}

void sim_event_reset(void)
{
    sim_slab_give_all(&events);
}

static CUresult create(CUevent *out, unsigned flags)
{
    CUcontext context;
    const unsigned known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    CUresult result = sim_context_usable(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || (flags & ~known) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    CUevent event = sim_slab_take(&events);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *event = (struct CUevent_st){
        .object = event->object,
        .context = context,
        .flags = flags,
        .frontier = event->frontier, // keeps its storage
    };
    *out = event;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CUresult result = sim_enter("cuEventCreate");

    if (result == CUDA_SUCCESS)
        result = create(event, flags);
    return sim_leave(result, "%p, %u", result == CUDA_SUCCESS ? (void *)*event : NULL,
                     flags);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = sim_enter("cuEventDestroy_v2");

    if (result == CUDA_SUCCESS)
        result = check(event);
    if (result == CUDA_SUCCESS)
        sim_slab_give(&events, &event->object);
    return sim_leave(result, "%p", (void *)event);
}

// ---- recording and waiting

CUresult sim_event_record(CUevent event, CUstream stream)
{
    const sim_work_t work = {
        .kind = SIM_WORK_RECORD,
        .call = "cuEventRecord",
        .event = event,
        .generation = event->object.generation,
    };
    CUresult result = sim_queue_submit(stream, &work, &event->ticket);

    if (result == CUDA_SUCCESS) {
        event->is_recorded = true;
        event->capture = NULL;
    }
    if (result == CUDA_SUCCESS && event->is_shared && stream->capture == NULL)
        sim_queue_wait(event->ticket);
    return result;
}

CUresult sim_event_share(CUevent event)
{
    CUresult result = check(event);

    if (result != CUDA_SUCCESS)
        return result;
    if (!(event->flags & CU_EVENT_INTERPROCESS))
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE,
                          "event %p was made without CU_EVENT_INTERPROCESS",
                          (void *)event);
    event->is_shared = true;
    sim_queue_wait(event->ticket);
    return CUDA_SUCCESS;
}

CUresult sim_event_open(CUevent *event)
{
    CUresult result = create(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);

    if (result == CUDA_SUCCESS)
        (*event)->is_shared = true;
    return result;
}

// In a capture an event marks a place in the graph instead of one in time.
static CUresult record_captured(CUevent event, CUstream stream)
{
    if (stream->capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!sim_nodes_copy(&event->frontier, &stream->frontier))
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->capture = stream->capture;
    event->capture_id = stream->capture->id;
    event->is_recorded = true;
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream handle, unsigned flags)
{
    CUstream stream;
    CUresult result = check(event);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->context != stream->context)
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE,
                          "the event is of device %d, the stream of device %d",
                          event->context->device, stream->context->device);
    if (stream->capture != NULL && !(flags & CU_EVENT_RECORD_EXTERNAL))
        return record_captured(event, stream);
    return sim_event_record(event, stream);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUresult result = sim_enter("cuEventRecord");

    if (result == CUDA_SUCCESS)
        result = record(event, stream, CU_EVENT_RECORD_DEFAULT);
    return sim_leave(result, "%p, %p", (void *)event, (void *)stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    CUresult result = sim_enter("cuEventRecordWithFlags");

    if (result == CUDA_SUCCESS)
        result = record(event, stream, flags);
    return sim_leave(result, "%p, %p, %u", (void *)event, (void *)stream, flags);
}

// What any stream of the context was given so far.
static CUresult record_all(CUcontext context, CUevent event)
{
    CUresult result = check(event);

    if (result == CUDA_SUCCESS && context != NULL && event->context != context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = event->context->sticky;
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid_in_context(event->context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream joint = sim_stream_joint(event->context);
    result = joint != NULL ? sim_queue_join(joint) : CUDA_ERROR_OUT_OF_MEMORY;
    return result == CUDA_SUCCESS ? sim_event_record(event, joint) : result;
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
    CUresult result = sim_enter("cuCtxRecordEvent");

    if (result == CUDA_SUCCESS)
        result = record_all(context, event);
    return sim_leave(result, "%p, %p", (void *)context, (void *)event);
}

CUresult sim_event_wait(CUevent event, CUstream stream)
{
    const sim_work_t work = {
        .kind = SIM_WORK_WAIT,
        .call = "cuStreamWaitEvent",
        .event = event,
        .generation = event->object.generation,
        .ticket = event->ticket,
    };

    if (stream->capture == NULL && sim_queue_is_done(event->ticket))
        return CUDA_SUCCESS;
    return sim_queue_submit(stream, &work, NULL);
}

// A wait that has to do with a capture, of the stream or of the event.
static CUresult wait_captured(CUevent event, CUstream stream)
{
    bool is_active = event->capture != NULL &&
                     sim_capture_is_active(event->capture, event->capture_id);

    if (stream->capture == NULL)
        return is_active ? sim_capture_join(stream, event->capture, &event->frontier)
                         : CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event->is_recorded)
        return CUDA_SUCCESS;
    if (is_active && event->capture == stream->capture)
        return sim_capture_join(stream, event->capture, &event->frontier);
    sim_capture_invalidate(stream->capture);
    return is_active ? CUDA_ERROR_STREAM_CAPTURE_MERGE
                     : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

static CUresult wait(CUstream handle, CUevent event, unsigned flags)
{
    CUstream stream;
    CUresult result = check(event);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    bool concerns_capture = stream->capture != NULL || event->capture != NULL;
    if (concerns_capture && !(flags & CU_EVENT_WAIT_EXTERNAL))
        return wait_captured(event, stream);
    return sim_event_wait(event, stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CUresult result = sim_enter("cuStreamWaitEvent");

    if (result == CUDA_SUCCESS)
        result = wait(stream, event, flags);
    return sim_leave(result, "%p, %p, %u", (void *)stream, (void *)event, flags);
}

// ---- questions

// What forbids asking for the state of an event.
static CUresult check_question(CUevent event)
{
    CUresult result = check(event);

    if (result != CUDA_SUCCESS)
        return result;
    if (event->context->sticky != CUDA_SUCCESS)
        return event->context->sticky;
    if (event->capture != NULL) {
        if (sim_capture_is_active(event->capture, event->capture_id))
            sim_capture_invalidate(event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return sim_capture_forbid();
}

CUresult cuEventQuery(CUevent event)
{
    CUresult result = sim_enter("cuEventQuery");

    if (result == CUDA_SUCCESS)
        result = check_question(event);
    if (result == CUDA_SUCCESS && !sim_queue_is_done(event->ticket))
        result = CUDA_ERROR_NOT_READY;
    return sim_leave(result, "%p", (void *)event);
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = sim_enter("cuEventSynchronize");

    if (result == CUDA_SUCCESS)
        result = check_question(event);
    if (result == CUDA_SUCCESS) {
        sim_queue_wait(event->ticket);
        result = event->context->sticky;
    }
    return sim_leave(result, "%p", (void *)event);
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    CUresult result = check(start);

    if (result == CUDA_SUCCESS)
        result = check(end);
    if (result != CUDA_SUCCESS)
        return result;
    if (ms == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start->is_recorded || !end->is_recorded || start->context != end->context ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (start->capture != NULL || end->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!sim_queue_is_done(start->ticket) || !sim_queue_is_done(end->ticket))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(end->end_ns - start->end_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    CUresult result = sim_enter("cuEventElapsedTime");

    if (result == CUDA_SUCCESS)
        result = elapsed(ms, start, end);
    return sim_leave(result, "%p, %p", (void *)start, (void *)end);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    CUresult result = sim_enter("cuEventElapsedTime_v2");

    if (result == CUDA_SUCCESS)
        result = elapsed(ms, start, end);
    return sim_leave(result, "%p, %p", (void *)start, (void *)end);
}
