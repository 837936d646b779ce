#include "libnccl/operations/meeting.h"

#include "libnccl/base/reduce.h"
#include "libnccl/ranks/error.h"

#include <stdio.h>
#include <string.h>

static void describe_input(const nccl_operation_t *operation, nccl_input_t *input)
{
    const uint64_t bytes = operation->in_bytes;

    if (oomph_sim_has_bytes())
        input->piece_count =
            oomph_sim_pieces(operation->in, bytes, input->pieces, NCCL_PIECES_MAX);
    else
        input->is_known =
            bytes <= NCCL_SMALL && oomph_sim_peek(operation->in, input->small, bytes);
}

static void come(void *argument, uint64_t now_ns)
{
    const nccl_operation_t *operation = argument;
    nccl_member_t *own = nccl_own(operation->comm);
    const uint64_t number = atomic_load(&own->came_count) + 1;

    atomic_store(&own->came_ns[number & 1], now_ns);
    atomic_store(&own->came_count, number);
}

static void come_with_input(void *argument, uint64_t now_ns)
{
    const nccl_operation_t *operation = argument;
    nccl_member_t *own = nccl_own(operation->comm);

    own->call = operation->call;
    describe_input(operation, &own->input);
    come(argument, now_ns);
}

static int is_met(void *argument, uint64_t *met_ns)
{
    const nccl_operation_t *operation = argument;
    const nccl_board_t *board = &operation->comm->board;
    const uint64_t number = atomic_load(&nccl_own(operation->comm)->came_count);

    *met_ns = 0;
    if (operation->comm->is_stopped || board->is_alone)
        return 1;
    for (int rank = 0; rank < board->size; rank++) {
        const nccl_member_t *member = nccl_member(board, rank);
        if (atomic_load(&member->came_count) < number)
            return 0;
        const uint64_t came_ns = atomic_load(&member->came_ns[number & 1]);
        *met_ns = came_ns > *met_ns ? came_ns : *met_ns;
    }
    return 1;
}

static bool is_same(const nccl_call_t *a, const nccl_call_t *b)
{
    return a->kind == b->kind && a->type == b->type && a->op == b->op &&
           a->root == b->root && a->count == b->count;
}

static bool fail_differing(struct ncclComm *comm, const nccl_call_t *call, int other,
                           const nccl_call_t *theirs)
{
    nccl_fail_both(comm, ncclInvalidUsage,
                   "ranks of a communicator call different things", call, other,
                   theirs);
    oomph_sim_report(comm->text);
    return false;
}

// As a real one would hang or mix up numbers, the stream goes no further. A message
// that was sent before and not received is a call that the other rank does not make.
static bool all_call_the_same(struct ncclComm *comm)
{
    const nccl_board_t *board = &comm->board;
    const nccl_call_t *own = &nccl_own(comm)->call;

    if (comm->error != ncclSuccess)
        return false;
    for (int rank = 0; !board->is_alone && rank < board->size; rank++) {
        const nccl_call_t *theirs = &nccl_member(board, rank)->call;
        const nccl_pair_t *in = nccl_pair(board, rank, comm->rank);
        const nccl_pair_t *out = nccl_pair(board, comm->rank, rank);
        if (nccl_is_under_way(in))
            return fail_differing(comm, own, rank, &in->call);
        if (nccl_is_under_way(out))
            return fail_differing(comm, &out->call, rank, theirs);
        if (!is_same(own, theirs))
            return fail_differing(comm, own, rank, theirs);
    }
    return true;
}

static int is_met_alike(void *argument, uint64_t *met_ns)
{
    struct ncclComm *comm = ((const nccl_operation_t *)argument)->comm;

    return is_met(argument, met_ns) && (comm->is_stopped || all_call_the_same(comm));
}

static void call(void *argument)
{
    nccl_member_t *own = nccl_own(((const nccl_operation_t *)argument)->comm);

    atomic_store(&own->wanted, atomic_load(&own->came_count));
}

static int is_called(void *argument)
{
    const struct ncclComm *comm = ((const nccl_operation_t *)argument)->comm;
    const uint64_t came_count =
        atomic_load(&nccl_member(&comm->board, comm->rank)->came_count);

    for (int rank = 0; !comm->board.is_alone && rank < comm->board.size; rank++)
        if (atomic_load(&nccl_member(&comm->board, rank)->wanted) > came_count)
            return 1;
    return 0;
}

const oomph_sim_meeting_t nccl_first_meeting = {come_with_input, is_met_alike, call,
                                                is_called};
const oomph_sim_meeting_t nccl_second_meeting = {come, is_met, call, is_called};
