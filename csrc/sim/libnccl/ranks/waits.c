#include "libnccl/ranks/waits.h"

#include "libnccl/ranks/error.h"

#include <stdio.h>

// ---- who waits for whom

static nccl_wait_t wait_of(const nccl_board_t *board, int rank, int other)
{
    const nccl_pair_t *in = nccl_pair(board, other, rank);
    const nccl_pair_t *out = nccl_pair(board, rank, other);
    const uint64_t came = atomic_load(&nccl_member(board, rank)->came_count);
    const uint64_t expected = atomic_load(&in->expected_count);
    const uint64_t receipts = atomic_load(&out->receipt_count);

    if (came > atomic_load(&nccl_member(board, other)->came_count))
        return (nccl_wait_t){NCCL_WAITS_TO_MEET, came};
    if (expected > atomic_load(&in->sent_count))
        return (nccl_wait_t){NCCL_WAITS_FOR_MESSAGE, expected};
    if (receipts > atomic_load(&out->taken_count))
        return (nccl_wait_t){NCCL_WAITS_FOR_RECEIPT, receipts};
    return (nccl_wait_t){NCCL_WAITS_NOT, 0};
}

int nccl_waits_for(const struct ncclComm *comm, nccl_wait_t *wait)
{
    for (int other = 0; other < comm->board.size; other++) {
        *wait = wait_of(&comm->board, comm->rank, other);
        if (other != comm->rank && wait->reason != NCCL_WAITS_NOT)
            return other;
    }
    return -1;
}

bool nccl_holds_program(const struct ncclComm *comm, int other, nccl_wait_t wait)
{
    const nccl_board_t *board = &comm->board;

    switch (wait.reason) {
    case NCCL_WAITS_TO_MEET:
        return atomic_load(&nccl_member(board, comm->rank)->wanted) >= wait.number;
    case NCCL_WAITS_FOR_MESSAGE:
        return atomic_load(&nccl_pair(board, other, comm->rank)->wanted) >= wait.number;
    case NCCL_WAITS_FOR_RECEIPT:
        return atomic_load(&nccl_pair(board, comm->rank, other)->wanted_back) >=
               wait.number;
    default:
        return false;
    }
}

// For each rank that a way leads to along ranks of which each waits for the next: the
// one before it, and how that waits for it.
typedef struct way {
    int before[NCCL_RANKS_MAX];
    nccl_wait_t wait[NCCL_RANKS_MAX];
} way_t;

// Whether a way leads from `rank` back to it.
static bool leads_back(const nccl_board_t *board, int rank, way_t *way)
{
    int reached[NCCL_RANKS_MAX + 1], reached_count = 1;

    for (int r = 0; r < board->size; r++)
        way->before[r] = -1;
    reached[0] = rank;
    for (int i = 0; i < reached_count && way->before[rank] < 0; i++) {
        for (int next = 0; next < board->size; next++) {
            const nccl_wait_t wait = wait_of(board, reached[i], next);
            if (next == reached[i] || way->before[next] >= 0 ||
                wait.reason == NCCL_WAITS_NOT)
                continue;
            way->before[next] = reached[i];
            way->wait[next] = wait;
            reached[reached_count++] = next;
        }
    }
    return way->before[rank] >= 0;
}

// The rank that this one waits for, which waits for this one, maybe by way of others;
// -1: there is none. Each step of the way was seen at a time of its own: if all are
// still there, there was a moment when all were.
static int waits_in_circle_for(const struct ncclComm *comm)
{
    const nccl_board_t *board = &comm->board;
    int rank = comm->rank, before;
    way_t way;

    if (!leads_back(board, comm->rank, &way))
        return -1;
    for (;; rank = before) {
        before = way.before[rank];
        const nccl_wait_t wait = wait_of(board, before, rank);
        if (wait.reason != way.wait[rank].reason ||
            wait.number != way.wait[rank].number)
            return -1;
        if (before == comm->rank)
            return rank;
    }
}

// ---- what cannot end

bool nccl_others_have_left(const struct ncclComm *comm, bool all)
{
    for (int rank = 0; rank < comm->board.size; rank++)
        if (rank != comm->rank && nccl_has_left(&comm->board, rank) != all)
            return !all;
    return all;
}

static void fail_without(struct ncclComm *comm, int other)
{
    const nccl_member_t *member = nccl_member(&comm->board, other);
    const int name = nccl_name(&comm->board, other);
    const int own_name = nccl_name(&comm->board, comm->rank);
    char text[128];

    if (atomic_load(&member->left) == NCCL_LEFT)
        snprintf(text, sizeof text,
                 "rank %d has left the communicator, and rank %d waits for it", name,
                 own_name);
    else
        snprintf(text, sizeof text,
                 "the process %d of rank %d has ended while rank %d was in a "
                 "communicator with it",
                 member->process, name, own_name);
    nccl_fail_both(comm, ncclRemoteError, text, &nccl_own(comm)->call, other,
                   &member->call);
}

void nccl_look_after(struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->board.size; rank++) {
        if (rank == comm->rank || nccl_board_lives(&comm->board, rank) ||
            (nccl_has_left(&comm->board, rank) &&
             wait_of(&comm->board, comm->rank, rank).reason == NCCL_WAITS_NOT))
            continue;
        fail_without(comm, rank);
        return;
    }
    const int other = waits_in_circle_for(comm);
    if (other >= 0)
        nccl_fail_both(
            comm, ncclInvalidUsage, "ranks of a communicator wait for each other",
            &nccl_own(comm)->call, other, &nccl_member(&comm->board, other)->call);
}
