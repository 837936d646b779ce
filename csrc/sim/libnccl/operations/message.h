/* message.h - calls between two ranks. */
#pragma once
#include "libnccl/operations/operation.h"

// Gives checked calls to their stream: at least one, all of one device.
ncclResult_t nccl_give_messages(const nccl_operation_t *operations, size_t count,
                                cudaStream_t stream);
