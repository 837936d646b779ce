#include "libcuda/engine/race.h"

#include "libcuda/engine/fault.h"
#include "libcuda/engine/value.h"
#include "libcuda/objects/stream.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

#include <stddef.h>

static uint64_t search;             // the latest
static uint64_t value_waiter_count; // streams in which it came upon a wait for a value
static bool met_closed;             // one of these values is not there yet

// Notes how far each stream is waited for by the pending operations of `stream` up to
// `number`, directly or through others. Looks at each operation once.
static void reach(CUstream stream, uint64_t number)
{
    sim_reach_t *mark = &stream->reach;
    const sim_operation_t *o;

    if (mark->search != search)
        *mark = (sim_reach_t){.search = search, .next = stream->head};
    if (number <= mark->number)
        return;
    mark->number = number;
    while ((o = mark->next) != NULL && o->number <= number) {
        mark->next = o->next;
        if (!sim_operation_may_start(o))
            met_closed = true;
        if (sim_work_waits_outside(&o->work) && !mark->waits_for_value) {
            mark->waits_for_value = true;
            value_waiter_count++;
        } else if (o->work.kind == SIM_WORK_WAIT &&
                   !sim_ticket_is_done(o->work.ticket)) {
            reach(o->work.ticket.stream, o->work.ticket.number);
        }
    }
}

static void start_search(CUstream stream, uint64_t number)
{
    search++;
    value_waiter_count = 0;
    met_closed = false;
    reach(stream, number);
}

// Whether what follows the operation of this number in the stream cannot start before a
// value is written that is not there yet.
static bool is_held_back(CUstream stream, uint64_t number)
{
    start_search(stream, number);
    return met_closed;
}

static bool is_running(const sim_operation_t *operation)
{
    return operation->started ||
           !is_held_back(operation->stream, operation->number - 1);
}

// Whether the search came upon the operation. Who writes the value that a stream waits
// for cannot be known: it may be any operation of another.
static bool is_waited_for(const sim_operation_t *operation)
{
    const sim_reach_t *mark = &operation->stream->reach;

    if (mark->search != search)
        return value_waiter_count > 0;
    return mark->number >= operation->number ||
           value_waiter_count > (uint64_t)mark->waits_for_value;
}

void sim_race_report(CUstream stream, const sim_work_t *work)
{
    bool searched = false;
    uint64_t addr;

    if (sim_pending_is_sole_user(stream))
        return;
    for (const sim_operation_t *o = sim_pending_users(); o != NULL;
         o = o->next_memory) {
        if (o->stream == stream || !sim_work_conflicts(work, &o->work, &addr))
            continue;
        if (!searched)
            start_search(stream, UINT64_MAX);
        searched = true;
        if (is_waited_for(o))
            continue;
        bool both_wait = met_closed;
        searched = false; // what follows is a search of its own
        if (!both_wait && !is_running(o))
            continue; // it is looked at when it starts
        sim_misuse(
            CUDA_SUCCESS,
            "stream %llu does not wait for a pending %s of stream %llu that uses "
            "%#llx too",
            (unsigned long long)stream->id, o->work.call,
            (unsigned long long)o->stream->id, (unsigned long long)addr);
        return;
    }
}

void sim_race_report_start(const sim_operation_t *operation)
{
    const sim_work_t *work = &operation->work;
    uint64_t addr;

    if (!work->is_dry)
        sim_work_may_use_memory(work, operation->stream);
    for (const sim_operation_t *o = sim_pending_users(); o != NULL;
         o = o->next_memory) {
        if (o->stream == operation->stream || !o->started ||
            !sim_work_conflicts(work, &o->work, &addr))
            continue;
        sim_misuse(CUDA_SUCCESS,
                   "a %s of stream %llu starts beside a %s of stream %llu that uses "
                   "%#llx too",
                   work->call, (unsigned long long)operation->stream->id, o->work.call,
                   (unsigned long long)o->stream->id, (unsigned long long)addr);
        return;
    }
}

const sim_operation_t *sim_race_find_runner(uint64_t addr, uint64_t bytes)
{
    const sim_operation_t *o = sim_pending_users();

    while (o != NULL && (!sim_work_touches(&o->work, addr, bytes) || !is_running(o)))
        o = o->next_memory;
    return o;
}
