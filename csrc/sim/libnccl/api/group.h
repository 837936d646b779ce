/* group.h - calls between ncclGroupStart() and ncclGroupEnd(), which each thread has
 * for itself: they wait for the end, and messages of a stream are then one operation.
 */
#pragma once
#include "libnccl/operations/operation.h"

// Within ncclGroupStart() and ncclGroupEnd(): whether the communicator at `place` is
// joined when that ends.
bool nccl_group_holds(ncclComm_t *place);

// Gives a checked call to its stream, at the end of the group if there is one.
ncclResult_t nccl_give(nccl_operation_t *operation, cudaStream_t stream);
