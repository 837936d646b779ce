#include "libcuda/engine/queue.h"

#include "libcuda/engine/callback.h"
#include "libcuda/engine/engine.h"
#include "libcuda/engine/heap.h"
#include "libcuda/engine/race.h"
#include "libcuda/memory/slab.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/lock.h"
#include "libcuda/session/report.h"

#include <stddef.h>

enum {
    LAUNCH_QUEUE = 1024,   // operations; a stream with more makes its caller wait
    VALUE_PATIENCE = 1000, // ms of real time for another thread to write a value
};

static sim_slab_t operations = {.object_bytes = sizeof(sim_operation_t)};
static sim_operation_t *memory_users; // pending operations that touch memory
static uint64_t memory_user_count;
static CUstream first_ready, last_ready;
static CUstream blocked; // streams whose first operation may not start yet
static uint64_t now_ns, sequence, executed_count, held_waits;
static bool checks_starts; // something waited outside: what follows may start late

uint64_t sim_queue_now_ns(void)
{
    return now_ns;
}

bool sim_queue_is_done(sim_ticket_t ticket)
{
    return ticket.stream == NULL || ticket.stream->completed_count >= ticket.number;
}

// The ticket of what was given to the stream last.
static sim_ticket_t last_ticket(CUstream stream)
{
    return (sim_ticket_t){.stream = stream, .number = stream->enqueued_count};
}

// ---- streams that may go on, and streams that wait

static void mark_ready(CUstream stream)
{
    if (stream->is_ready)
        return;
    stream->is_ready = true;
    stream->next_ready = NULL;
    if (first_ready == NULL)
        first_ready = stream;
    else
        last_ready->next_ready = stream;
    last_ready = stream;
}

static CUstream take_ready(void)
{
    CUstream stream = first_ready;

    first_ready = stream->next_ready;
    stream->is_ready = false;
    return stream;
}

static void mark_blocked(CUstream stream)
{
    if (stream->is_blocked)
        return;
    stream->is_blocked = true;
    stream->next_blocked = blocked;
    blocked = stream;
}

static bool may_start(const sim_operation_t *operation)
{
    return sim_queue_is_done(operation->work.ticket) &&
           sim_work_may_start(&operation->work, operation->stream);
}

static void recheck_blocked(void)
{
    CUstream *link = &blocked;

    while (*link != NULL) {
        CUstream stream = *link;
        if (stream->head != NULL && !may_start(stream->head)) {
            link = &stream->next_blocked;
            continue;
        }
        *link = stream->next_blocked;
        stream->is_blocked = false;
        mark_ready(stream);
    }
}

// ---- operations

static void link_memory_user(sim_operation_t *operation)
{
    operation->prev_memory = NULL;
    operation->next_memory = memory_users;
    if (memory_users != NULL)
        memory_users->prev_memory = operation;
    memory_users = operation;
    memory_user_count++;
    operation->stream->memory_user_count++;
}

static void unlink_memory_user(sim_operation_t *operation)
{
    if (operation->prev_memory != NULL)
        operation->prev_memory->next_memory = operation->next_memory;
    else
        memory_users = operation->next_memory;
    if (operation->next_memory != NULL)
        operation->next_memory->prev_memory = operation->prev_memory;
    memory_user_count--;
    operation->stream->memory_user_count--;
}

static bool counts_as_blocking(const struct CUstream_st *stream)
{
    return !stream->is_default && sim_stream_is_blocking(stream);
}

// The operation is over: it leaves its stream, and what waited for it may go on.
static void retire(sim_operation_t *operation)
{
    CUstream stream = operation->stream;

    stream->head = operation->next;
    if (stream->head == NULL)
        stream->tail = NULL;
    stream->pending_count--;
    if (counts_as_blocking(stream))
        stream->context->blocking_pending_count--;
    stream->completed_count = operation->number;
    executed_count++;
    if (sim_work_uses_memory(&operation->work))
        unlink_memory_user(operation);
    sim_work_discard(&operation->work);
    sim_slab_give(&operations, &operation->object);
    if (stream->head != NULL)
        mark_ready(stream);
    if (blocked != NULL)
        recheck_blocked();
    sim_wake();
}

static void complete(sim_operation_t *operation)
{
    if (sim_work_runs_apart(&operation->work)) {
        operation->executing = true;
        sim_callback_run(operation);
        return;
    }
    sim_work_execute(&operation->work, operation->stream, now_ns);
    retire(operation);
}

static void start_head(CUstream stream)
{
    sim_operation_t *operation = stream->head;

    if (operation == NULL || operation->started || stream->held)
        return;
    if (!may_start(operation)) {
        mark_blocked(stream);
        return;
    }
    if (checks_starts && sim_work_uses_memory(&operation->work))
        sim_race_report_start(operation);
    operation->started = true;
    operation->end_ns = sim_engine_start(&operation->work, stream->context, now_ns);
    operation->sequence = sequence++;
    if (operation->end_ns == now_ns || !sim_heap_push(operation))
        complete(operation);
}

static void settle(void)
{
    while (first_ready != NULL)
        start_head(take_ready());
}

// Moves the clock to the next end of an operation, which must be there.
static void step(void)
{
    sim_operation_t *operation = sim_heap_pop();

    if (operation->end_ns > now_ns)
        now_ns = operation->end_ns;
    if (operation->stream->held)
        operation->parked = true;
    else
        complete(operation);
    settle();
}

void sim_queue_callback_done(sim_operation_t *operation)
{
    retire(operation);
    settle();
}

void sim_queue_advance(uint64_t ns)
{
    uint64_t until = now_ns + ns;

    if (blocked != NULL) { // the program may have written the value itself
        recheck_blocked();
        settle();
    }
    while (sim_heap_top() != NULL && sim_heap_top()->end_ns <= until)
        step();
    if (until > now_ns)
        now_ns = until;
}

// ---- submission

static bool append(CUstream stream, const sim_work_t *work)
{
    sim_operation_t *operation = sim_slab_take(&operations);

    if (operation == NULL)
        return false;
    *operation = (sim_operation_t){
        .object = operation->object,
        .work = *work,
        .stream = stream,
        .number = ++stream->enqueued_count,
    };
    if (stream->tail != NULL)
        stream->tail->next = operation;
    else
        stream->head = operation;
    stream->tail = operation;
    stream->pending_count++;
    if (counts_as_blocking(stream))
        stream->context->blocking_pending_count++;
    if (sim_work_uses_memory(work))
        link_memory_user(operation);
    if (sim_work_waits_outside(work))
        checks_starts = true;
    if (stream->head == operation)
        mark_ready(stream);
    return true;
}

static bool append_wait(CUstream stream, sim_ticket_t ticket)
{
    const sim_work_t wait = {
        .kind = SIM_WORK_WAIT, .call = sim_current_call(), .ticket = ticket};

    return ticket.stream == stream || sim_queue_is_done(ticket) ||
           append(stream, &wait);
}

// The default stream waits for the blocking streams of its context.
static bool wait_for_blocking_streams(CUstream stream)
{
    CUstream other;

    if (stream->context->blocking_pending_count == 0)
        return true;
    for (uint32_t i = 0; (other = sim_stream_at(i)) != NULL; i++) {
        if (other->context != stream->context || !counts_as_blocking(other) ||
            other->seen_by_default == other->enqueued_count)
            continue;
        if (!append_wait(stream, last_ticket(other)))
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
    return append_wait(stream, last_ticket(other));
}

static bool order_with_default_stream(CUstream stream)
{
    if (stream->is_default)
        return wait_for_blocking_streams(stream);
    return !sim_stream_is_blocking(stream) || wait_for_default_stream(stream);
}

// The stream on whose first operation `stream` depends in the end.
static CUstream find_blocker(CUstream stream)
{
    while (!stream->held && stream->head != NULL && !stream->head->started &&
           !sim_queue_is_done(stream->head->work.ticket))
        stream = stream->head->work.ticket.stream;
    return stream;
}

// As on hardware, whoever gives a stream more than it can hold waits for it.
static void relieve(CUstream stream)
{
    while (stream->pending_count > LAUNCH_QUEUE && sim_heap_top() != NULL) {
        CUstream blocker = find_blocker(stream);
        if (blocker->held || !blocker->head->started || blocker->head->executing)
            return;
        step();
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
    if (result == CUDA_SUCCESS && sim_work_uses_memory(work))
        sim_race_report(stream, work);
    if (result == CUDA_SUCCESS && !append(stream, work))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        sim_work_discard(work);
        return result;
    }
    if (ticket != NULL)
        *ticket = last_ticket(stream);
    settle();
    relieve(stream);
    return CUDA_SUCCESS;
}

CUresult sim_queue_join(CUstream stream)
{
    CUstream other;

    for (uint32_t i = 0; (other = sim_stream_at(i)) != NULL; i++) {
        if (other->context == stream->context &&
            !append_wait(stream, last_ticket(other)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    settle();
    return CUDA_SUCCESS;
}

// ---- waiting

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
    recheck_blocked();
    settle();
    sim_operation_t *operation = blocker->head;
    if (is_foreign || waited_ms < VALUE_PATIENCE || operation == NULL ||
        operation->started)
        return waited_ms + 1;
    sim_misuse(CUDA_SUCCESS, "deadlock: %s waits for a value that nobody writes",
               operation->work.call);
    operation->work.kind = SIM_WORK_KERNEL; // lets it pass
    recheck_blocked();
    settle();
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
    if (sim_heap_top() == NULL)
        return false;
    step();
    return true;
}

void sim_queue_wait(sim_ticket_t ticket)
{
    unsigned waited_ms = 0;

    while (!sim_queue_is_done(ticket)) {
        CUstream blocker = find_blocker(ticket.stream);
        if (!go_on(blocker))
            waited_ms = wait_for_others(blocker, waited_ms);
    }
}

static bool goes_on_by(const struct CUstream_st *blocker, uint64_t until_ns)
{
    if (blocker->held)
        return until_ns == SIM_MARK_FOR_EVER;
    return sim_heap_top() == NULL || sim_heap_top()->end_ns <= until_ns;
}

void sim_queue_run(sim_ticket_t ticket, uint64_t until_ns)
{
    recheck_blocked();
    settle();
    while (!sim_queue_is_done(ticket)) {
        CUstream blocker = find_blocker(ticket.stream);
        if (goes_on_by(blocker, until_ns) && go_on(blocker))
            continue;
        if (is_at_mark(blocker))
            sim_mark_call_for(&blocker->head->work.mark, until_ns);
        return;
    }
}

// Whether a wait for `stream` includes `other`.
static bool includes(const struct CUstream_st *stream, const struct CUstream_st *other)
{
    return other == stream ||
           (stream->is_default && other->context == stream->context &&
            counts_as_blocking(other));
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
            sim_queue_wait(last_ticket(other));
    }
}

void sim_queue_wait_for_context(CUcontext context)
{
    CUstream stream;

    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++) {
        if (stream->context == context)
            sim_queue_wait(last_ticket(stream));
    }
}

void sim_queue_hold(CUstream stream)
{
    stream->held = true;
}

void sim_queue_release(CUstream stream)
{
    sim_operation_t *operation = stream->head;

    stream->held = false;
    if (operation != NULL && operation->parked) {
        operation->parked = false;
        complete(operation);
    } else {
        mark_ready(stream);
    }
    settle();
}

// ---- questions

const sim_operation_t *sim_queue_memory_users(void)
{
    return memory_users;
}

bool sim_queue_is_sole_user(const struct CUstream_st *stream)
{
    return memory_user_count == stream->memory_user_count;
}

const sim_operation_t *sim_queue_find_user(uint64_t addr, uint64_t bytes,
                                           CUstream except)
{
    const sim_operation_t *operation = memory_users;

    while (operation != NULL && (operation->stream == except ||
                                 !sim_work_touches(&operation->work, addr, bytes)))
        operation = operation->next_memory;
    return operation;
}

bool sim_queue_writes(uint64_t addr, uint64_t bytes)
{
    const sim_operation_t *operation = memory_users;

    while (operation != NULL && !sim_work_writes(&operation->work, addr, bytes))
        operation = operation->next_memory;
    return operation != NULL;
}

uint64_t sim_queue_pending_count(void)
{
    return operations.live_count;
}

uint64_t sim_queue_executed_count(void)
{
    return executed_count;
}

uint64_t sim_queue_held_waits(void)
{
    return held_waits;
}

static void discard_all(void)
{
    for (uint32_t i = 0; i < operations.count; i++) {
        sim_operation_t *operation = sim_slab_at(&operations, i);
        if (sim_is_live(&operation->object))
            sim_work_discard(&operation->work);
    }
    sim_slab_give_all(&operations);
}

static void empty(CUstream stream)
{
    stream->head = stream->tail = NULL;
    stream->pending_count = stream->memory_user_count = 0;
    stream->completed_count = stream->enqueued_count;
    stream->held = stream->is_ready = stream->is_blocked = false;
}

void sim_queue_reset(void)
{
    CUstream stream;

    while (sim_callback_count() > 0)
        sim_wait(1);
    discard_all();
    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++)
        empty(stream);
    sim_heap_clear();
    memory_users = NULL;
    memory_user_count = 0;
    first_ready = blocked = NULL;
    now_ns = sequence = executed_count = held_waits = 0;
    checks_starts = false;
}
