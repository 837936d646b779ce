#include "libcuda/engine/queue.h"

#include "libcuda/base/clock.h"
#include "libcuda/base/lock.h"
#include "libcuda/engine/effects.h"
#include "libcuda/engine/engine.h"
#include "libcuda/engine/race.h"
#include "libcuda/engine/value.h"
#include "libcuda/objects/stream.h"
#include "libcuda/objects/work.h"

#include <stdlib.h>

static sim_operation_t **heap; // those that run
static size_t heap_count, heap_capacity;
static CUstream first_ready, last_ready;
static CUstream blocked; // streams whose first operation may not start yet
static uint64_t sequence;
static bool checks_starts; // something waited outside: what follows may start late

// ---- operations that run, the one that ends first on top: a binary heap, as each is
// put in and taken out once. Equal ends come out in the order in which they went in, so
// runs repeat.

static bool ends_before(const sim_operation_t *a, const sim_operation_t *b)
{
    return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->sequence < b->sequence;
}

static void swap(size_t a, size_t b)
{
    sim_operation_t *held = heap[a];

    heap[a] = heap[b];
    heap[b] = held;
}

static void sift_up(size_t place)
{
    while (place > 0 && ends_before(heap[place], heap[(place - 1) / 2])) {
        swap(place, (place - 1) / 2);
        place = (place - 1) / 2;
    }
}

static void sift_down(size_t place)
{
    for (;;) {
        size_t first = place, left = 2 * place + 1;
        if (left < heap_count && ends_before(heap[left], heap[first]))
            first = left;
        if (left + 1 < heap_count && ends_before(heap[left + 1], heap[first]))
            first = left + 1;
        if (first == place)
            return;
        swap(place, first);
        place = first;
    }
}

static bool push(sim_operation_t *operation)
{
    if (heap_count == heap_capacity) {
        size_t wanted = heap_capacity ? heap_capacity * 2 : 64;
        sim_operation_t **grown = realloc(heap, wanted * sizeof(sim_operation_t *));
        if (grown == NULL)
            return false;
        heap = grown;
        heap_capacity = wanted;
    }
    heap[heap_count++] = operation;
    sift_up(heap_count - 1);
    return true;
}

const sim_operation_t *sim_queue_top(void)
{
    return heap_count > 0 ? heap[0] : NULL;
}

static sim_operation_t *pop(void)
{
    sim_operation_t *top = heap[0];

    heap[0] = heap[--heap_count];
    sift_down(0);
    return top;
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
    return sim_ticket_is_done(operation->work.ticket) &&
           sim_operation_may_start(operation);
}

static void recheck_blocked(void)
{
    CUstream *link = &blocked;

    while (*link != NULL) {
        CUstream stream = *link;
        if (stream->head != NULL && stream->head->has_come &&
            !may_start(stream->head)) {
            link = &stream->next_blocked;
            continue;
        }
        *link = stream->next_blocked;
        stream->is_blocked = false;
        mark_ready(stream);
    }
}

CUstream sim_queue_find_blocker(CUstream stream)
{
    while (!stream->held && stream->head != NULL && !stream->head->started &&
           !sim_ticket_is_done(stream->head->work.ticket))
        stream = stream->head->work.ticket.stream;
    return stream;
}

// ---- operations

// The operation is over: it leaves its stream, and what waited for it may go on.
static void retire(sim_operation_t *operation)
{
    CUstream stream = operation->stream;

    sim_pending_remove(operation);
    if (stream->head != NULL)
        mark_ready(stream);
    if (blocked != NULL)
        recheck_blocked();
    sim_end_wait();
}

// What ran apart has returned.
static void finish(sim_operation_t *operation)
{
    retire(operation);
    sim_queue_start_ready();
}

static void complete(sim_operation_t *operation)
{
    if (sim_work_runs_apart(&operation->work)) {
        operation->executing = true;
        sim_callback_run(operation, finish);
        return;
    }
    sim_work_execute(&operation->work, operation->stream, operation->end_ns);
    retire(operation);
}

// When the stream came to the operation. That is now, but behind what other processes
// were waited for: they may come, on their own way through real time, when the clock
// here has moved on. Then the stream catches up.
static uint64_t came_ns(const sim_operation_t *operation)
{
    const sim_ticket_t before = {operation->stream, operation->number - 1};
    uint64_t came_ns = operation->given_ns;

    if (operation->work.kind == SIM_WORK_WAIT_VALUE)
        return sim_clock_ns();
    if (sim_ticket_end_ns(before) > came_ns)
        came_ns = sim_ticket_end_ns(before);
    if (sim_ticket_end_ns(operation->work.ticket) > came_ns)
        came_ns = sim_ticket_end_ns(operation->work.ticket);
    return came_ns;
}

// The stream has come to the operation: other processes hear of it, if they wait.
static void come_to(sim_operation_t *operation)
{
    const oomph_sim_meeting_t *meeting = sim_work_meeting(&operation->work);

    if (meeting != NULL && !operation->has_come)
        meeting->come(operation->work.compute->what.argument, came_ns(operation));
    operation->has_come = true;
}

static void start_head(CUstream stream)
{
    sim_operation_t *operation = stream->head;

    if (operation == NULL || operation->started || stream->held)
        return;
    come_to(operation);
    if (!may_start(operation)) {
        mark_blocked(stream);
        return;
    }
    if (checks_starts && sim_work_uses_memory(&operation->work))
        sim_race_report_start(operation);
    operation->started = true;
    operation->end_ns =
        sim_engine_start(&operation->work, stream->context, came_ns(operation));
    operation->sequence = sequence++;
    if (operation->end_ns <= sim_clock_ns() || !push(operation))
        complete(operation);
}

void sim_queue_start_ready(void)
{
    while (first_ready != NULL)
        start_head(take_ready());
}

void sim_queue_step(void)
{
    sim_operation_t *operation = pop();

    sim_clock_move_to(operation->end_ns);
    if (operation->stream->held)
        operation->parked = true;
    else
        complete(operation);
    sim_queue_start_ready();
}

void sim_queue_recheck(void)
{
    recheck_blocked();
    sim_queue_start_ready();
}

void sim_queue_advance(uint64_t ns)
{
    uint64_t until = sim_clock_ns() + ns;

    if (blocked != NULL) // the program may have written the value itself
        sim_queue_recheck();
    while (sim_queue_top() != NULL && sim_queue_top()->end_ns <= until)
        sim_queue_step();
    sim_clock_move_to(until);
}

bool sim_queue_append(CUstream stream, const sim_work_t *work)
{
    sim_operation_t *operation = sim_pending_add(stream, work);

    if (operation == NULL)
        return false;
    if (sim_work_waits_outside(work))
        checks_starts = true;
    operation->given_ns = sim_clock_ns();
    if (stream->head == operation)
        mark_ready(stream);
    return true;
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
        operation->end_ns = sim_clock_ns();
        complete(operation);
    } else {
        if (operation != NULL)
            operation->given_ns = sim_clock_ns();
        mark_ready(stream);
    }
    sim_queue_start_ready();
}

void sim_queue_reset(void)
{
    while (sim_callback_count() > 0)
        sim_wait(1);
    sim_pending_reset();
    heap_count = 0;
    first_ready = blocked = NULL;
    sequence = 0;
    checks_starts = false;
    sim_clock_reset();
}
