#include "libcuda/engine/wait.h"

#include "libcuda/base/lock.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/record.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/failure.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"

#include <time.h>

enum {
    VALUE_PATIENCE = 1000, // ms of real time for another thread to write a value
    YIELDS = 64,           // before a wait for other processes sleeps,
    SLEEPS = 300,          // ms of real time, before it moves the clock
    QUIET = 50,            // ms of real time without a call
    IDLE = 200,            // ms of real time without new work
};

// How long a wait has lasted without anything that moved.
typedef struct patience {
    unsigned meeting_count, value_ms; // looks for other processes
    bool has_ended;                   // as these need what moves the clock
} patience_t;

static uint64_t held_waits;
static bool thread_is_running; // that answers
static bool is_at_rest;        // at its last look

static uint64_t real_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// Whether the stream is at a wait for another process, which has to be asked.
static bool is_at_mark(const struct CUstream_st *stream)
{
    return stream->head != NULL && !stream->head->started &&
           stream->head->work.kind == SIM_WORK_WAIT &&
           stream->head->work.mark.board != NULL;
}

// What the stream is at, if it needs other processes that have not come; or NULL.
static const sim_work_t *meeting_of(const struct CUstream_st *stream)
{
    return stream->head != NULL && !stream->head->started &&
                   sim_work_meeting(&stream->head->work) != NULL
               ? &stream->head->work
               : NULL;
}

static void call(const sim_work_t *work)
{
    sim_work_meeting(work)->call(work->compute->what.argument);
}

// The others mostly come soon: they are let go on before anything else is done.
static void wait_for_meeting(const sim_work_t *work, patience_t *patience)
{
    call(work);
    if (patience->meeting_count++ < YIELDS)
        sim_yield();
    else
        sim_wait(1);
    sim_queue_recheck();
}

// Gives up on a value that nobody writes.
static void wait_for_value(CUstream blocker, patience_t *patience)
{
    sim_wait(1);
    sim_queue_recheck();
    sim_operation_t *operation = blocker->head;
    if (++patience->value_ms <= VALUE_PATIENCE || operation == NULL ||
        operation->started)
        return;
    sim_misuse(CUDA_SUCCESS, "deadlock: %s waits for a value that nobody writes",
               operation->work.call);
    operation->work.kind = SIM_WORK_KERNEL; // lets it pass
    sim_queue_recheck();
    patience->value_ms = 0;
}

// Nothing moves but what other threads and processes do.
static void wait_for_others(CUstream blocker, patience_t *patience)
{
    const sim_work_t *work = meeting_of(blocker);

    if (work != NULL) {
        wait_for_meeting(work, patience);
    } else if (is_at_mark(blocker)) {
        sim_mark_ask(blocker->head->work.mark, SIM_MARK_FOR_EVER);
        sim_queue_recheck();
    } else {
        wait_for_value(blocker, patience);
    }
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

// The operation that needs other processes to which the stream comes next; NULL if it
// waits at one for them, or there is none.
static const sim_operation_t *next_meeting(const struct CUstream_st *stream)
{
    const sim_operation_t *operation = stream->head;

    while (operation != NULL &&
           (operation->started || sim_work_meeting(&operation->work) == NULL))
        operation = operation->next;
    return operation != NULL && !operation->has_come ? operation : NULL;
}

// Whether other processes wait for what the stream comes to.
static bool is_called(const struct CUstream_st *stream)
{
    const sim_operation_t *next = next_meeting(stream);

    return next != NULL &&
           sim_work_meeting(&next->work)->is_called(next->work.compute->what.argument);
}

// Whether to wait for other processes before the clock moves on. They mostly come soon,
// and what they bring has begun before what other streams here have yet to end; but
// they may need these first.
static bool is_patient(patience_t *patience)
{
    CUstream stream;

    for (uint32_t i = 0; !patience->has_ended && (stream = sim_stream_at(i)) != NULL;
         i++)
        patience->has_ended = is_called(stream);
    patience->has_ended |= patience->meeting_count >= YIELDS + SLEEPS;
    return !patience->has_ended;
}

void sim_queue_wait(sim_ticket_t ticket)
{
    patience_t patience = {0};

    while (!sim_ticket_is_done(ticket)) {
        CUstream blocker = sim_queue_find_blocker(ticket.stream);
        const sim_work_t *work = meeting_of(blocker);
        if (work != NULL && is_patient(&patience))
            wait_for_meeting(work, &patience);
        else if (go_on(blocker))
            patience.meeting_count = patience.value_ms = 0;
        else
            wait_for_others(blocker, &patience);
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
        if (meeting_of(blocker) != NULL)
            call(meeting_of(blocker));
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

// Has streams come to where other processes wait for them. A program that makes calls
// comes there by itself, at its own time: false.
static bool come_if_called(void)
{
    static uint64_t calls_before, called_ms;
    const uint64_t calls = sim_call_total(), now_ms = real_ms();
    CUstream stream;

    sim_queue_recheck();
    if (calls != calls_before)
        called_ms = now_ms;
    calls_before = calls;
    const bool is_busy = now_ms - called_ms < QUIET;
    for (uint32_t i = 0; !is_busy && (stream = sim_stream_at(i)) != NULL; i++) {
        if (is_called(stream))
            run_until((sim_ticket_t){stream, next_meeting(stream)->number - 1},
                      SIM_MARK_FOR_EVER);
    }
    return !is_busy;
}

// Of all operations that the program has ever given.
static uint64_t given_count(void)
{
    return sim_pending_executed_count() + sim_pending_count();
}

// A device goes on by itself. The clock moves only by what the program does, so that
// runs repeat; but one that gives it no more work may wait for what others do.
static void go_on_if_idle(void)
{
    static uint64_t given_before, given_ms;
    const uint64_t given = given_count(), now_ms = real_ms();

    if (given != given_before)
        given_ms = now_ms;
    given_before = given;
    while (now_ms - given_ms >= IDLE && sim_queue_top() != NULL)
        sim_queue_step();
}

// One look for others that wait for this process. Threads that ask after events, as
// PyTorch's watchdogs do ten times a second, do not end its rest.
static void go_on_for_others(void)
{
    static uint64_t given_before;
    const uint64_t executed = sim_pending_executed_count();
    const bool has_come = come_if_called();

    go_on_if_idle();
    is_at_rest = (has_come || is_at_rest) && given_count() == given_before &&
                 sim_queue_top() == NULL && executed == sim_pending_executed_count();
    given_before = given_count();
}

bool sim_queue_is_at_rest(void)
{
    return is_at_rest || sim_pending_meeting_count() == 0;
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_lock();
    while (sim_record_is_any() || sim_pending_meeting_count() > 0) {
        if (sim_pending_meeting_count() > 0)
            go_on_for_others();
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

bool sim_meeting_begin(void)
{
    return sim_start_thread(&thread_is_running, run);
}

void sim_wait_reset(void)
{
    held_waits = 0;
    sim_record_reset();
    while (thread_is_running)
        sim_wait(1);
}
