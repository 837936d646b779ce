/* error.h - what has failed, in words, as PyTorch asks for it. */
#pragma once
#include "libnccl/ranks/communicator.h"

// How the program calls a rank: by its number among all.
int nccl_name(const nccl_board_t *board, int rank);

// What a rank calls: "rank 1: broadcast of 8 float32, root 0 at train.py:9".
void nccl_describe(const nccl_board_t *board, int rank, const nccl_call_t *call,
                   char *text, size_t bytes);

// Keeps the first error; others see that this rank does not go on.
void nccl_fail(struct ncclComm *comm, ncclResult_t error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same, with what this rank calls and what another does, behind the text.
void nccl_fail_both(struct ncclComm *comm, ncclResult_t error, const char *text,
                    const nccl_call_t *call, int other, const nccl_call_t *theirs);

// Keeps the text as the last error, and returns `error`.
ncclResult_t nccl_refuse(ncclResult_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// For the generated stubs (csrc/sim/stubs.py): records the name of a function that is
// not simulated, and returns `status`.
int oomph_sim_nccl_unsupported(const char *function, int status);
