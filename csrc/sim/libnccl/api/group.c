#include "libnccl/api/group.h"

#include "libnccl/operations/collective.h"
#include "libnccl/operations/message.h"
#include "libnccl/ranks/error.h"
#include "libnccl/ranks/join.h"
#include "libnccl/ranks/watch.h"

#include <stdlib.h>

// A call that waits for the end of its group.
typedef struct held {
    nccl_operation_t operation;
    cudaStream_t stream;
    bool is_given;
} held_t;

static _Thread_local int depth;
static _Thread_local held_t *held;
static _Thread_local size_t held_count, held_capacity;
static _Thread_local ncclComm_t **joining; // where communicators are to be
static _Thread_local size_t joining_count;

bool nccl_group_holds(ncclComm_t *place)
{
    if (depth == 0)
        return false;
    ncclComm_t **grown = realloc(joining, (joining_count + 1) * sizeof *joining);
    if (grown == NULL)
        return false;
    joining = grown;
    joining[joining_count++] = place;
    return true;
}

static ncclResult_t hold(const nccl_operation_t *operation, cudaStream_t stream)
{
    if (held_count == held_capacity) {
        const size_t wanted = held_capacity ? 2 * held_capacity : 16;
        held_t *grown = realloc(held, wanted * sizeof *held);
        if (grown == NULL)
            return ncclSystemError;
        held = grown;
        held_capacity = wanted;
    }
    held[held_count++] = (held_t){.operation = *operation, .stream = stream};
    return ncclSuccess;
}

static bool is_message(const nccl_operation_t *operation)
{
    return operation->call.kind == NCCL_SEND || operation->call.kind == NCCL_RECV;
}

// All messages that a stream is given, from the one at `first` on.
static ncclResult_t give_messages(size_t first)
{
    nccl_operation_t *together = malloc((held_count - first) * sizeof *together);
    size_t count = 0;

    if (together == NULL)
        return ncclSystemError;
    for (size_t i = first; i < held_count; i++) {
        if (held[i].is_given || !is_message(&held[i].operation) ||
            held[i].stream != held[first].stream ||
            held[i].operation.comm->device != held[first].operation.comm->device)
            continue;
        together[count++] = held[i].operation;
        held[i].is_given = true;
    }
    ncclResult_t result = nccl_give_messages(together, count, held[first].stream);
    free(together);
    return result;
}

// Whether both are parts of one gathering that PyTorch 2.15 makes of broadcasts.
static bool gather_together(const nccl_operation_t *a, const nccl_operation_t *b)
{
    return a->comm == b->comm && a->call.kind == NCCL_BROADCAST &&
           b->call.kind == NCCL_BROADCAST && a->call.count == b->call.count &&
           a->call.type == b->call.type;
}

// Which of two messages is more like the one that another rank would send: it would
// give this rank what this rank gives itself.
static bool is_closer(const nccl_operation_t *sent, const nccl_operation_t *than,
                      const nccl_operation_t *received)
{
    if (than == NULL || sent->call.root == sent->comm->rank)
        return true;
    return than->call.root != than->comm->rank &&
           sent->call.root == received->call.root;
}

// What a rank that is alone receives is what it sends together with that, in messages
// of the same size.
static void stand_in_for_sender(nccl_operation_t *received)
{
    const nccl_operation_t *own = NULL;

    for (size_t i = 0; i < held_count; i++) {
        const nccl_operation_t *sent = &held[i].operation;
        if (sent->call.kind == NCCL_SEND && sent->comm == received->comm &&
            sent->in_bytes == received->out_bytes && is_closer(sent, own, received))
            own = sent;
    }
    if (own == NULL)
        return;
    received->in = own->in;
    received->in_bytes = own->in_bytes;
}

// A rank that is alone gives what it broadcasts itself in place of what others would.
static void stand_in_for_others(void)
{
    const nccl_operation_t *own = NULL;

    for (size_t i = 0; i < held_count; i++)
        if (held[i].operation.comm->board.is_alone &&
            held[i].operation.call.kind == NCCL_RECV)
            stand_in_for_sender(&held[i].operation);

    for (size_t i = 0; i < held_count; i++)
        if (held[i].operation.comm->board.is_alone &&
            held[i].operation.call.root == held[i].operation.comm->rank)
            own = &held[i].operation;
    for (size_t i = 0; own != NULL && i < held_count; i++)
        if (gather_together(own, &held[i].operation))
            held[i].operation.in = own->in;
}

static ncclResult_t end_group(void)
{
    ncclResult_t result = ncclSuccess;

    stand_in_for_others();
    for (size_t i = 0; result == ncclSuccess && i < joining_count; i++)
        result = nccl_join_end(*joining[i]);
    joining_count = 0;
    // All of a group go on together: messages, which may be taken late, are first.
    for (size_t i = 0; result == ncclSuccess && i < held_count; i++)
        if (is_message(&held[i].operation) && !held[i].is_given)
            result = give_messages(i);
    for (size_t i = 0; result == ncclSuccess && i < held_count; i++)
        if (!is_message(&held[i].operation))
            result = nccl_give_collective(&held[i].operation, held[i].stream);
    held_count = 0;
    return result;
}

ncclResult_t nccl_give(nccl_operation_t *operation, cudaStream_t stream)
{
    struct ncclComm *comm = operation->comm;

    if (operation->call.count == 0)
        return ncclSuccess;
    if (comm->error != ncclSuccess)
        return (ncclResult_t)comm->error;
    oomph_sim_line(operation->call.line, sizeof operation->call.line);
    if (!comm->board.is_alone)
        nccl_watch_call(comm, &operation->call);
    if (depth > 0)
        return hold(operation, stream);
    return is_message(operation) ? nccl_give_messages(operation, 1, stream)
                                 : nccl_give_collective(operation, stream);
}

// ---- what is exported

#pragma GCC visibility push(default)

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return nccl_refuse(ncclInvalidUsage, "no group was started");
    return --depth > 0 ? ncclSuccess : end_group();
}

#pragma GCC visibility pop
