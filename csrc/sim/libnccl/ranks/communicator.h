/* communicator.h - a rank's membership of a communicator. */
#pragma once
#include "libnccl/ranks/board.h"

#include <cuda.h>

struct ncclComm {
    atomic_int owner_count; // the program, and each operation in work
    int rank, device;
    CUcontext context; // of the device: a stream of 0 is its default one
    nccl_board_t board;
    int *bytes_files;      // of each rank, opened when they are first read; -1: not yet
    atomic_int is_stopped; // aborted: nothing waits for others any more
    atomic_int error;      // ncclResult_t; the first one stays
    char text[640];        // why
    CUdeviceptr buffers;   // what NCCL takes for itself; 0: nothing
    CUevent last;          // of the stream that worked for it last
    CUstream last_stream;  // NULL: none did
    double *scales;        // of the operations that it made, by number
    int scale_count;
    uint64_t *sent_bytes, *taken_bytes; // in messages to and from each rank
    uint64_t host_count;                // calls that blocked the host
    uint64_t shrink_count;
    struct nccl_watch *watch; // watch.h; NULL: nobody looks
};

static inline nccl_member_t *nccl_own(struct ncclComm *comm)
{
    return nccl_member(&comm->board, comm->rank);
}

// A membership that is not of a board yet. NULL without host memory. The second is for
// one that has not become of one.
struct ncclComm *nccl_comm_new(int size, int rank, int device);
void nccl_comm_free(struct ncclComm *comm);

// One owner more, and one less: the last one ends the membership.
void nccl_comm_share(struct ncclComm *comm);
void nccl_comm_drop(struct ncclComm *comm);

// Between the two the communicator's device is current to this thread. False: the
// driver refuses, and the second is not called.
bool nccl_enter(struct ncclComm *comm);
void nccl_leave(void);

// The file that holds the bytes of a rank's process; -1 if the system refuses.
int nccl_bytes_file(struct ncclComm *comm, int rank);
