#include "communicator.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Of all communicators, as PyTorch asks for it without naming one.
static char last_error[512];
static pthread_mutex_t last_error_lock = PTHREAD_MUTEX_INITIALIZER;

// ---- errors

static void keep_error(const char *text)
{
    pthread_mutex_lock(&last_error_lock);
    snprintf(last_error, sizeof last_error, "%s", text);
    pthread_mutex_unlock(&last_error_lock);
}

void nccl_fail(struct ncclComm *comm, ncclResult_t error, const char *format, ...)
{
    int none = ncclSuccess;
    va_list arguments;

    if (comm->error != ncclSuccess)
        return;
    va_start(arguments, format);
    vsnprintf(comm->text, sizeof comm->text, format, arguments);
    va_end(arguments);
    keep_error(comm->text);
    fprintf(stderr, "oomph: %s\n", comm->text); // PyTorch 2.15 asks for the code alone
    atomic_compare_exchange_strong(&comm->error, &none, (int)error);
}

ncclResult_t nccl_refuse(ncclResult_t error, const char *format, ...)
{
    char text[sizeof last_error];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keep_error(text);
    return error;
}

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

void nccl_comm_drop(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->owner_count, 1) > 1)
        return;
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

// Whether all live that this rank may wait for.
static void look_after(struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->board.size; rank++) {
        const nccl_member_t *member = nccl_member(&comm->board, rank);
        if (rank == comm->rank || nccl_board_lives(&comm->board, rank) ||
            atomic_load(&member->has_left))
            continue;
        nccl_fail(comm, ncclRemoteError,
                  "the process %d of rank %d has ended while rank %d was in a "
                  "communicator with it",
                  member->process, rank, comm->rank);
        return;
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (!comm->board.is_alone && comm->error == ncclSuccess)
        look_after(comm);
    *error = (ncclResult_t)comm->error;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm)
{
    if (comm != NULL && comm->error != ncclSuccess)
        return comm->text;
    return last_error[0] != '\0' ? last_error : oomph_sim_refusal();
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

const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const TEXTS[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };

    return (unsigned)result < sizeof TEXTS / sizeof TEXTS[0] ? TEXTS[result]
                                                             : "unknown result code";
}

#pragma GCC visibility pop
