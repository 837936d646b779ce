#include "libcuda/engine/submit.h"

#include "libcuda/engine/pending.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/race.h"
#include "libcuda/engine/wait.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

enum { LAUNCH_QUEUE = 1024 }; // operations; a stream with more makes its caller wait

static bool append_wait(CUstream stream, sim_ticket_t ticket)
{
    const sim_work_t wait = {
        .kind = SIM_WORK_WAIT, .call = sim_current_call(), .ticket = ticket};

    return ticket.stream == stream || sim_ticket_is_done(ticket) ||
           sim_queue_append(stream, &wait);
}

// The default stream waits for the blocking streams of its context.
static bool wait_for_blocking_streams(CUstream stream)
{
    CUstream other;

    if (stream->context->blocking_pending_count == 0)
        return true;
    for (uint32_t i = 0; (other = sim_stream_at(i)) != NULL; i++) {
        if (other->context != stream->context || !sim_stream_delays_default(other) ||
            other->seen_by_default == other->enqueued_count)
            continue;
        if (!append_wait(stream, sim_ticket_of_last(other)))
            return false;
        other->seen_by_default = other->enqueued_count;
    }
    return true;
}

// A blocking stream waits for the default stream of its context.
static bool wait_for_default_stream(CUstream stream)
{
    CUstream other = stream->context->default_stream;

    if (stream->default_seen == other->enqueued_count)
        return true;
    stream->default_seen = other->enqueued_count;
    return append_wait(stream, sim_ticket_of_last(other));
}

static bool order_with_default_stream(CUstream stream)
{
    if (stream->is_default)
        return wait_for_blocking_streams(stream);
    return !sim_stream_is_blocking(stream) || wait_for_default_stream(stream);
}

// As on hardware, whoever gives a stream more than it can hold waits for it.
static void relieve(CUstream stream)
{
    while (stream->pending_count > LAUNCH_QUEUE && sim_queue_top() != NULL) {
        CUstream blocker = sim_queue_find_blocker(stream);
        if (blocker->held || !blocker->head->started || blocker->head->executing)
            return;
        sim_queue_step();
    }
}

CUresult sim_queue_submit(CUstream stream, const sim_work_t *work, sim_ticket_t *ticket)
{
    bool captured;
    CUresult result = sim_capture_intercept(stream, work, &captured);

    if (captured)
        return result;
    if (result == CUDA_SUCCESS && !order_with_default_stream(stream))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && sim_work_meeting(work) != NULL &&
        !sim_meeting_begin())
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && sim_work_uses_memory(work))
        sim_race_report(stream, work);
    if (result == CUDA_SUCCESS && !sim_queue_append(stream, work))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        sim_work_discard(work);
        return result;
    }
    if (ticket != NULL)
        *ticket = sim_ticket_of_last(stream);
    sim_queue_start_ready();
    relieve(stream);
    return CUDA_SUCCESS;
}

CUresult sim_queue_join(CUstream stream)
{
    CUstream other;

    for (uint32_t i = 0; (other = sim_stream_at(i)) != NULL; i++) {
        if (other->context == stream->context &&
            !append_wait(stream, sim_ticket_of_last(other)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_queue_start_ready();
    return CUDA_SUCCESS;
}
