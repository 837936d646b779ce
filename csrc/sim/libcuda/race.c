#include "race.h"

#include "call.h"

#include <stddef.h>

// Whether the pending operations of `stream` up to `number` wait for `ticket`, directly
// or through others. Who writes the value that one waits for cannot be known: it may be
// `ticket`.
static bool waits_for(CUstream stream, uint64_t number, sim_ticket_t ticket)
{
    if (stream == ticket.stream)
        return number >= ticket.number;
    for (const sim_operation_t *o = stream->head; o != NULL && o->number <= number;
         o = o->next) {
        if (o->work.kind == SIM_WORK_WAIT_VALUE)
            return true;
        if (o->work.kind == SIM_WORK_WAIT && !sim_queue_is_done(o->work.ticket) &&
            waits_for(o->work.ticket.stream, o->work.ticket.number, ticket))
            return true;
    }
    return false;
}

void sim_race_report(CUstream stream, const sim_work_t *work)
{
    uint64_t addr;

    for (const sim_operation_t *o = sim_queue_memory_users(); o != NULL;
         o = o->next_memory) {
        const sim_ticket_t before = {.stream = o->stream, .number = o->number};
        if (o->stream == stream || !sim_work_conflicts(work, &o->work, &addr) ||
            waits_for(stream, UINT64_MAX, before))
            continue;
        sim_misuse(
            CUDA_SUCCESS,
            "stream %llu does not wait for a pending %s of stream %llu that uses "
            "%#llx too",
            (unsigned long long)stream->id, o->work.call,
            (unsigned long long)o->stream->id, (unsigned long long)addr);
        return;
    }
}
