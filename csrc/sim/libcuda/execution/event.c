#include "libcuda/execution/event.h"

#include "libcuda/base/clock.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/record.h"
#include "libcuda/engine/submit.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/nodes.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    return SIM_CALL(sim_event_create(event, flags, NULL), "%p, %u",
                    result == CUDA_SUCCESS ? (void *)*event : NULL, flags);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = sim_event_check(event);
    if (result == CUDA_SUCCESS)
        sim_event_destroy(event);
    return sim_leave(result, "%p", (void *)event);
}

// ---- recording and waiting

// Checks an event, and finds the stream that is to record it or wait for it.
static CUresult find(CUevent event, CUstream handle, CUstream *stream)
{
    CUresult result = sim_event_check(event);

    return result == CUDA_SUCCESS ? sim_stream_find(handle, stream) : result;
}

// Puts the record into the stream's order; `mark` is that of the event, or none.
static CUresult submit_record(CUevent event, CUstream stream, const sim_mark_t *mark)
{
    const sim_work_t work = {
        .kind = SIM_WORK_RECORD,
        .call = "cuEventRecord",
        .event = event,
        .generation = event->object.generation,
        .mark = *mark,
    };
    CUresult result = sim_queue_submit(stream, &work, &event->ticket);

    if (result == CUDA_SUCCESS) {
        event->is_recorded = true;
        event->capture = NULL;
    }
    return result;
}

CUresult sim_event_record(CUevent event, CUstream stream)
{
    const sim_mark_t none = {0};

    if (event->mark.board == NULL || stream->capture != NULL)
        return submit_record(event, stream, &none);
    CUresult result = sim_answer_begin(&event->mark);
    if (result != CUDA_SUCCESS)
        return result;
    result = submit_record(event, stream, &event->mark);
    if (result == CUDA_SUCCESS)
        sim_record_place(&event->mark, event->ticket);
    else
        sim_record_end(&event->mark);
    return result;
}

CUresult sim_event_share(CUevent event, sim_mark_t *mark)
{
    CUresult result = sim_event_check(event);

    if (result != CUDA_SUCCESS)
        return result;
    if (event->mark.board == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE,
                          "event %p was made without CU_EVENT_INTERPROCESS",
                          (void *)event);
    *mark = event->mark;
    return CUDA_SUCCESS;
}

CUresult sim_event_open(CUevent *event, const sim_mark_t *mark)
{
    return sim_event_create(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
                            mark);
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
    CUresult result = find(event, handle, &stream);

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
    return SIM_CALL(record(event, stream, CU_EVENT_RECORD_DEFAULT), "%p, %p",
                    (void *)event, (void *)stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    return SIM_CALL(record(event, stream, flags), "%p, %p, %u", (void *)event,
                    (void *)stream, flags);
}

// What any stream of the context was given so far.
static CUresult record_all(CUcontext context, CUevent event)
{
    CUresult result = sim_event_check(event);

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
    return SIM_CALL(record_all(context, event), "%p, %p", (void *)context,
                    (void *)event);
}

// The latest record of the event, if another process has made it.
static bool find_foreign(CUevent event, sim_mark_t *mark)
{
    if (event->mark.board == NULL)
        return false;
    *mark = sim_mark_latest(&event->mark);
    return mark->number != event->mark.number;
}

static bool has_come_to(const sim_mark_t *mark)
{
    return sim_mark_is_done(mark) && sim_mark_end_ns(mark) <= sim_clock_ns();
}

CUresult sim_event_wait(CUevent event, CUstream stream)
{
    sim_work_t work = {
        .kind = SIM_WORK_WAIT,
        .call = "cuStreamWaitEvent",
        .event = event,
        .generation = event->object.generation,
        .ticket = event->ticket,
    };

    if (stream->capture != NULL)
        return sim_queue_submit(stream, &work, NULL);
    if (find_foreign(event, &work.mark)) {
        work.ticket = (sim_ticket_t){0};
        sim_mark_ask(work.mark, SIM_MARK_FREELY);
        if (has_come_to(&work.mark))
            return CUDA_SUCCESS;
    } else if (sim_ticket_is_done(event->ticket)) {
        return CUDA_SUCCESS;
    }
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
    CUresult result = find(event, handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    bool concerns_capture = stream->capture != NULL || event->capture != NULL;
    if (concerns_capture && !(flags & CU_EVENT_WAIT_EXTERNAL))
        return wait_captured(event, stream);
    return sim_event_wait(event, stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    return SIM_CALL(wait(stream, event, flags), "%p, %p, %u", (void *)stream,
                    (void *)event, flags);
}

// ---- questions

// The error if the state of an event must not be asked for now.
static CUresult check_question(CUevent event)
{
    CUresult result = sim_event_check(event);

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

static bool is_done(CUevent event)
{
    sim_mark_t mark;

    if (!find_foreign(event, &mark))
        return sim_ticket_is_done(event->ticket);
    sim_mark_ask(mark, sim_clock_ns());
    return has_come_to(&mark);
}

static void wait_for_foreign(const sim_mark_t *mark)
{
    while (!sim_mark_is_done(mark))
        sim_mark_ask(*mark, SIM_MARK_FOR_EVER);
    uint64_t now_ns = sim_clock_ns(), end_ns = sim_mark_end_ns(mark);
    if (end_ns > now_ns)
        sim_queue_advance(end_ns - now_ns);
}

static void wait_for(CUevent event)
{
    sim_mark_t mark;

    if (find_foreign(event, &mark))
        wait_for_foreign(&mark);
    else
        sim_queue_wait(event->ticket);
}

CUresult cuEventQuery(CUevent event)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_question(event);
    if (result == CUDA_SUCCESS && !is_done(event))
        result = CUDA_ERROR_NOT_READY;
    return sim_leave(result, "%p", (void *)event);
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_question(event);
    if (result == CUDA_SUCCESS) {
        wait_for(event);
        result = event->context->sticky;
    }
    return sim_leave(result, "%p", (void *)event);
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    CUresult result = sim_event_check(start);

    if (result == CUDA_SUCCESS)
        result = sim_event_check(end);
    if (result != CUDA_SUCCESS)
        return result;
    if (ms == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start->is_recorded || !end->is_recorded || start->context != end->context ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (start->capture != NULL || end->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!sim_ticket_is_done(start->ticket) || !sim_ticket_is_done(end->ticket))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(end->end_ns - start->end_ns) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult get_elapsed(const char *function, float *ms, CUevent start, CUevent end)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS)
        result = elapsed(ms, start, end);
    return sim_leave(result, "%p, %p", (void *)start, (void *)end);
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return get_elapsed(__func__, ms, start, end);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    return get_elapsed(__func__, ms, start, end);
}
