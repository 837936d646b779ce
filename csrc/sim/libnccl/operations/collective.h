/* collective.h - calls that all ranks of a communicator make. */
#pragma once
#include "libnccl/operations/operation.h"

// Gives a checked call to its stream.
ncclResult_t nccl_give_collective(const nccl_operation_t *operation,
                                  cudaStream_t stream);
