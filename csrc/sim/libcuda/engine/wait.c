#include "libcuda/engine/wait.h"

#include "libcuda/base/lock.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/record.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"

enum { VALUE_PATIENCE = 1000 }; // ms of real time for another thread to write a value

static uint64_t held_waits;
static bool thread_is_running; // that answers

// Whether the stream is at a wait for another process, which has to be asked.
static bool is_at_mark(const struct CUstream_st *stream)
{
    return stream->head != NULL && !stream->head->started &&
           stream->head->work.kind == SIM_WORK_WAIT &&
           stream->head->work.mark.board != NULL;
}

// Nothing moves but what other threads and processes do. Gives up on a value that
// nobody writes.
static unsigned wait_for_others(CUstream blocker, unsigned waited_ms)
{
    const bool is_foreign = is_at_mark(blocker);

    if (is_foreign)
        sim_mark_ask(blocker->head->work.mark, SIM_MARK_FOR_EVER);
    sim_wait(1);
    sim_queue_recheck();
    sim_operation_t *operation = blocker->head;
    if (is_foreign || waited_ms < VALUE_PATIENCE || operation == NULL ||
        operation->started)
        return waited_ms + 1;
    sim_misuse(CUDA_SUCCESS, "deadlock: %s waits for a value that nobody writes",
               operation->work.call);
    operation->work.kind = SIM_WORK_KERNEL; // lets it pass
    sim_queue_recheck();
    return 0;
}

// One step towards what a stream is given: false if that depends on others.
static bool go_on(CUstream blocker)
{
    if (blocker->held) {
        held_waits++;
        sim_queue_release(blocker);
        return true;
    }
    if (sim_queue_top() == NULL)
        return false;
    sim_queue_step();
    return true;
}

void sim_queue_wait(sim_ticket_t ticket)
{
    unsigned waited_ms = 0;

    while (!sim_ticket_is_done(ticket)) {
        CUstream blocker = sim_queue_find_blocker(ticket.stream);
        if (!go_on(blocker))
            waited_ms = wait_for_others(blocker, waited_ms);
    }
}

// Whether a wait for `stream` includes `other`.
static bool includes(const struct CUstream_st *stream, const struct CUstream_st *other)
{
    return other == stream ||
           (stream->is_default && other->context == stream->context &&
            sim_stream_delays_default(other));
}

bool sim_queue_is_idle(CUstream stream)
{
    CUstream other;

    for (uint32_t i = 0; (other = sim_stream_at(i)) != NULL; i++) {
        if (includes(stream, other) && other->pending_count > 0)
            return false;
    }
    return true;
}

void sim_queue_wait_for_stream(CUstream stream)
{
    CUstream other;

    for (uint32_t i = 0; (other = sim_stream_at(i)) != NULL; i++) {
        if (includes(stream, other))
            sim_queue_wait(sim_ticket_of_last(other));
    }
}

void sim_queue_wait_for_context(CUcontext context)
{
    CUstream stream;

    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++) {
        if (stream->context == context)
            sim_queue_wait(sim_ticket_of_last(stream));
    }
}

uint64_t sim_queue_held_waits(void)
{
    return held_waits;
}

// ---- what others wait for

static bool goes_on_by(const struct CUstream_st *blocker, uint64_t until_ns)
{
    if (blocker->held)
        return until_ns == SIM_MARK_FOR_EVER;
    return sim_queue_top() == NULL || sim_queue_top()->end_ns <= until_ns;
}

// Moves the clock towards the ticket, at most to `until_ns` (see mark.h), without
// giving the lock away.
static void run_until(sim_ticket_t ticket, uint64_t until_ns)
{
    sim_queue_recheck();
    while (!sim_ticket_is_done(ticket)) {
        CUstream blocker = sim_queue_find_blocker(ticket.stream);
        if (goes_on_by(blocker, until_ns) && go_on(blocker))
            continue;
        if (is_at_mark(blocker))
            sim_mark_call_for(&blocker->head->work.mark, until_ns);
        return;
    }
}

// Answers one question, if there is one.
static bool answer(void)
{
    sim_question_t question;
    sim_ticket_t ticket;
    sim_mark_t mark;

    if (!sim_record_find_asked(&mark, &ticket, &question))
        return false;
    run_until(ticket, question.until_ns);
    sim_mark_answer(&mark, &question);
    return true;
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_lock();
    while (sim_record_is_any()) {
        if (!answer())
            sim_wait(1);
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

CUresult sim_answer_begin(sim_mark_t *mark)
{
    return sim_start_thread(&thread_is_running, run) ? sim_record_begin(mark)
                                                     : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_wait_reset(void)
{
    held_waits = 0;
    sim_record_reset();
    while (thread_is_running)
        sim_wait(1);
}
