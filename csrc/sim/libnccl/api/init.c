/* init.c - what programs call to become members of a communicator: by its id, by a
 * split, by a shrink. Such calls block the host until all have come.
 */
#include "libnccl/api/group.h"
#include "libnccl/ranks/error.h"
#include "libnccl/ranks/join.h"

#include <string.h>

// ---- what is exported

#pragma GCC visibility push(default)

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    return nccl_board_make((nccl_address_t *)id->internal) ? ncclSuccess
                                                           : ncclSystemError;
}

static ncclResult_t join(ncclComm_t *comm, int size, const nccl_address_t *address,
                         int rank, int device)
{
    ncclResult_t result = nccl_join_begin(address, size, rank, device, comm);

    if (result != ncclSuccess || nccl_group_holds(comm))
        return result;
    result = nccl_join_end(*comm);
    if (result == ncclSuccess)
        return result;
    nccl_comm_drop(*comm);
    *comm = NULL;
    return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id,
                                    int rank, const void *config);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id,
                                    int rank, const void *config)
{
    nccl_address_t address;
    int device;

    (void)config;
    memcpy(&address, id.internal, sizeof address);
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = 0; // the runtime's, until one is set
    return join(comm, size, &address, rank, device);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, size, id, rank, NULL);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank,
                                      int id_count, const ncclUniqueId *ids,
                                      const void *config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank,
                                      int id_count, const ncclUniqueId *ids,
                                      const void *config)
{
    if (id_count < 1)
        return nccl_refuse(ncclInvalidArgument, "no id");
    return ncclCommInitRankConfig(comm, size, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int size, const int *devices);
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int size, const int *devices)
{
    ncclResult_t result = ncclSuccess;
    ncclUniqueId id;
    nccl_address_t address;

    if (ncclGetUniqueId(&id) != ncclSuccess)
        return ncclSystemError;
    memcpy(&address, id.internal, sizeof address);
    for (int i = 0; result == ncclSuccess && i < size; i++)
        result =
            nccl_join_begin(&address, size, i, devices ? devices[i] : i, &comms[i]);
    for (int i = 0; result == ncclSuccess && i < size; i++)
        result = nccl_join_end(comms[i]);
    return result;
}

// ---- others made of one

// The rank that makes the file for those of its colour, and how many they are; `rank`
// becomes this one's place among them.
static int leader_of(struct ncclComm *comm, int *rank, int *size)
{
    const nccl_member_t *own = nccl_own(comm);
    int leader = -1;

    *rank = *size = 0;
    for (int r = 0; r < comm->board.size; r++) {
        const nccl_member_t *member = nccl_member(&comm->board, r);
        if (member->color != own->color)
            continue;
        ++*size;
        *rank += member->key < own->key || (member->key == own->key && r < comm->rank);
        if (leader < 0 || member->key < nccl_member(&comm->board, leader)->key)
            leader = r;
    }
    return leader;
}

static ncclResult_t split(struct ncclComm *comm, int color, int key, ncclComm_t *made)
{
    nccl_member_t *own = nccl_own(comm);
    int rank, size;

    own->color = color;
    own->key = key;
    ncclResult_t result = nccl_meet_on_host(comm);
    if (result != ncclSuccess)
        return result;
    const int leader = leader_of(comm, &rank, &size);
    if (leader == comm->rank && color >= 0 && !nccl_board_make(&own->child))
        return ncclSystemError;
    result = nccl_meet_on_host(comm);
    if (result != ncclSuccess || color < 0)
        return result;
    return join(made, size, &nccl_member(&comm->board, leader)->child, rank,
                comm->device);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                           const void *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                           const void *config)
{
    (void)config;
    *made = NULL;
    return split(comm, color, key, made);
}

static bool is_among(int rank, const int *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

// The first rank that stays makes the file; the others need nobody else.
static ncclResult_t shrink(struct ncclComm *comm, const int *without, int count,
                           ncclComm_t *made)
{
    nccl_member_t *own = nccl_own(comm);
    const uint64_t shrink_count = ++comm->shrink_count;
    int leader = -1, rank = 0, size = 0;

    for (int r = 0; r < comm->board.size; r++) {
        if (is_among(r, without, count))
            continue;
        leader = leader < 0 ? r : leader;
        rank += r < comm->rank;
        size++;
    }
    if (leader == comm->rank) {
        if (!nccl_board_make(&own->child))
            return ncclSystemError;
        atomic_store(&own->shrink_count, shrink_count);
    }
    const nccl_member_t *first = nccl_member(&comm->board, leader);
    for (unsigned looks = 0; atomic_load(&first->shrink_count) < shrink_count;
         looks++) {
        if (!nccl_board_lives(&comm->board, leader))
            return nccl_refuse(ncclRemoteError, "rank %d of the communicator has ended",
                               leader);
        nccl_pause_after(looks);
    }
    return join(made, size, &first->child, rank, comm->device);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, const int *without, int count,
                            ncclComm_t *made, const void *config, int flags);
ncclResult_t ncclCommShrink(ncclComm_t comm, const int *without, int count,
                            ncclComm_t *made, const void *config, int flags)
{
    (void)config;
    *made = NULL;
    if (is_among(comm->rank, without, count))
        return nccl_refuse(ncclInvalidArgument, "rank %d shrinks itself away",
                           comm->rank);
    if (flags & NCCL_SHRINK_ABORT)
        atomic_store(&comm->is_stopped, 1);
    return shrink(comm, without, count, made);
}

#pragma GCC visibility pop
