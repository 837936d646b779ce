#include "libnccl/ranks/communicator.h"

#include "libnccl/ranks/error.h"
#include "libnccl/ranks/watch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

// ---- membership

struct ncclComm *nccl_comm_new(int size, int rank, int device)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);

    if (comm == NULL)
        return NULL;
    comm->owner_count = 1;
    comm->rank = rank;
    comm->device = device;
    comm->bytes_files = malloc((size_t)size * sizeof(int));
    comm->sent_bytes = calloc((size_t)size, sizeof(uint64_t));
    comm->taken_bytes = calloc((size_t)size, sizeof(uint64_t));
    for (int i = 0; comm->bytes_files != NULL && i < size; i++)
        comm->bytes_files[i] = -1;
    return comm;
}

void nccl_comm_free(struct ncclComm *comm)
{
    for (int i = 0; comm->bytes_files != NULL && i < comm->board.size; i++)
        if (comm->bytes_files[i] >= 0)
            close(comm->bytes_files[i]);
    free(comm->bytes_files);
    free(comm->sent_bytes);
    free(comm->taken_bytes);
    free(comm->scales);
    free(comm);
}

void nccl_comm_share(struct ncclComm *comm)
{
    atomic_fetch_add(&comm->owner_count, 1);
}

// A real sender would wait for ever.
static void look_for_messages(struct ncclComm *comm)
{
    for (int rank = 0; !comm->board.is_alone && rank < comm->board.size; rank++) {
        const nccl_pair_t *in = nccl_pair(&comm->board, rank, comm->rank);
        if (nccl_is_under_way(in))
            nccl_fail_both(comm, ncclInvalidUsage, "a message is never received",
                           &nccl_own(comm)->call, rank, &in->call);
    }
}

void nccl_comm_drop(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->owner_count, 1) > 1)
        return;
    nccl_unwatch(comm);
    if (!comm->is_stopped)
        look_for_messages(comm);
    nccl_board_leave(&comm->board, comm->rank);
    nccl_board_close(&comm->board);
    nccl_comm_free(comm);
}

bool nccl_enter(struct ncclComm *comm)
{
    return cuCtxPushCurrent(comm->context) == CUDA_SUCCESS;
}

void nccl_leave(void)
{
    CUcontext left;

    cuCtxPopCurrent(&left);
}

int nccl_bytes_file(struct ncclComm *comm, int rank)
{
    const nccl_member_t *member = nccl_member(&comm->board, rank);

    if (comm->bytes_files[rank] < 0)
        comm->bytes_files[rank] =
            nccl_reopen(member->process, member->bytes_file, O_RDONLY);
    return comm->bytes_files[rank];
}

// ---- what is exported

#pragma GCC visibility push(default)

ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    (void)comm;
    return ncclSuccess;
}

static void end(struct ncclComm *comm)
{
    if (comm->buffers != 0)
        cuMemFree(comm->buffers);
    if (comm->last != NULL)
        cuEventDestroy(comm->last);
    cuDevicePrimaryCtxRelease(comm->device);
    nccl_comm_drop(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm != NULL)
        end(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm == NULL)
        return ncclSuccess;
    atomic_store(&comm->is_stopped, 1);
    nccl_board_leave(&comm->board, comm->rank);
    end(comm);
    return ncclSuccess;
}

// ---- questions

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = (ncclResult_t)comm->error;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count);
ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    *count = comm->board.size;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION;
    return ncclSuccess;
}

#pragma GCC visibility pop
