#include "libcuda/engine/pending.h"

#include "libcuda/base/slab.h"
#include "libcuda/objects/work.h"

#include <string.h>

static sim_slab_t operations = {.object_bytes = sizeof(sim_operation_t)};
static sim_operation_t *memory_users; // pending operations that touch memory
static uint64_t memory_user_count, meeting_count, executed_count;

bool sim_ticket_is_done(sim_ticket_t ticket)
{
    return ticket.stream == NULL || ticket.stream->completed_count >= ticket.number;
}

uint64_t sim_ticket_end_ns(sim_ticket_t ticket)
{
    if (ticket.stream == NULL || ticket.number == 0)
        return 0;
    const uint64_t newest = ticket.stream->completed_count;
    const bool is_old = ticket.number + SIM_STREAM_ENDS <= newest;
    const uint64_t number = is_old ? newest - SIM_STREAM_ENDS + 1 : ticket.number;
    return ticket.stream->ends_ns[number % SIM_STREAM_ENDS];
}

sim_ticket_t sim_ticket_of_last(CUstream stream)
{
    return (sim_ticket_t){.stream = stream, .number = stream->enqueued_count};
}

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

sim_operation_t *sim_pending_add(CUstream stream, const sim_work_t *work)
{
    sim_operation_t *operation = sim_slab_take(&operations);

    if (operation == NULL)
        return NULL;
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
    if (sim_stream_delays_default(stream))
        stream->context->blocking_pending_count++;
    if (sim_work_uses_memory(work))
        link_memory_user(operation);
    meeting_count += sim_work_meeting(work) != NULL;
    return operation;
}

void sim_pending_remove(sim_operation_t *operation)
{
    CUstream stream = operation->stream;

    stream->head = operation->next;
    if (stream->head == NULL)
        stream->tail = NULL;
    stream->pending_count--;
    if (sim_stream_delays_default(stream))
        stream->context->blocking_pending_count--;
    stream->completed_count = operation->number;
    stream->ends_ns[operation->number % SIM_STREAM_ENDS] = operation->end_ns;
    executed_count++;
    if (sim_work_uses_memory(&operation->work))
        unlink_memory_user(operation);
    meeting_count -= sim_work_meeting(&operation->work) != NULL;
    sim_work_discard(&operation->work);
    sim_slab_give(&operations, &operation->object);
}

const sim_operation_t *sim_pending_users(void)
{
    return memory_users;
}

bool sim_pending_is_sole_user(const struct CUstream_st *stream)
{
    return memory_user_count == stream->memory_user_count;
}

const sim_operation_t *sim_pending_find_user(uint64_t addr, uint64_t bytes,
                                             CUstream except)
{
    const sim_operation_t *operation = memory_users;

    while (operation != NULL && (operation->stream == except ||
                                 !sim_work_touches(&operation->work, addr, bytes)))
        operation = operation->next_memory;
    return operation;
}

bool sim_pending_writes(uint64_t addr, uint64_t bytes)
{
    const sim_operation_t *operation = memory_users;

    while (operation != NULL && !sim_work_writes(&operation->work, addr, bytes))
        operation = operation->next_memory;
    return operation != NULL;
}

uint64_t sim_pending_count(void)
{
    return operations.live_count;
}

uint64_t sim_pending_meeting_count(void)
{
    return meeting_count;
}

uint64_t sim_pending_executed_count(void)
{
    return executed_count;
}

static void discard_all(void)
{
    sim_operation_t *operation;

    for (uint32_t i = 0; (operation = sim_slab_next(&operations, &i)) != NULL;)
        sim_work_discard(&operation->work);
    sim_slab_give_all(&operations);
}

static void empty(CUstream stream)
{
    stream->head = stream->tail = NULL;
    stream->pending_count = stream->memory_user_count = 0;
    stream->completed_count = stream->enqueued_count;
    memset(stream->ends_ns, 0, sizeof stream->ends_ns);
    stream->held = stream->is_ready = stream->is_blocked = false;
}

void sim_pending_reset(void)
{
    CUstream stream;

    discard_all();
    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++)
        empty(stream);
    memory_users = NULL;
    memory_user_count = meeting_count = executed_count = 0;
}
