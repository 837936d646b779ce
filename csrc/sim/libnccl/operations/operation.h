/* operation.h - a call of a communicator on a stream: what it is made of, and what all
 * kinds have in common.
 *
 * An operation is one or two computations (oomph_sim_compute()). At the first, all
 * ranks meet, having said where their input lies; each then reads what it needs of the
 * others. At the second they meet again: from then on everybody may write to his input.
 * The operations of a communicator follow each other, on whatever streams.
 */
#pragma once
#include "libnccl/ranks/communicator.h"

#include "sim.h"

typedef struct nccl_operation {
    struct ncclComm *comm;
    nccl_call_t call;
    int op;           // with its scale
    double scale;     // by which each input is multiplied; 1: not at all
    uint64_t in, out; // 0: this rank has none
    uint64_t in_bytes, out_bytes;
    uint64_t cost_ns;
} nccl_operation_t;

// Gives the stream a computation that has a copy of the operation.
ncclResult_t nccl_submit(const nccl_operation_t *operation,
                         const oomph_sim_meeting_t *meeting, int (*run)(void *),
                         cudaStream_t stream);

// Before the first computation and after the last one of a call: the communicator's
// operations follow each other. Errors: UNHANDLED_CUDA_ERROR.
ncclResult_t nccl_order(struct ncclComm *comm, cudaStream_t stream);
ncclResult_t nccl_ordered(struct ncclComm *comm, cudaStream_t stream);

// How long it takes to move so many bytes between ranks, in so many steps.
uint64_t nccl_cost_ns(double bytes, int step_count);
