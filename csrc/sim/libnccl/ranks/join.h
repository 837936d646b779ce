/* join.h - how a rank becomes a member of a communicator, and how ranks meet on their
 * hosts.
 */
#pragma once
#include "libnccl/ranks/communicator.h"

// Joins a communicator in two steps, as one thread may be several ranks: it comes, and
// it waits until all have come.
ncclResult_t nccl_join_begin(const nccl_address_t *address, int size, int rank,
                             int device, struct ncclComm **made);
ncclResult_t nccl_join_end(struct ncclComm *comm);

// All ranks come to this call before any goes on. Errors: REMOTE_ERROR (one has ended),
// that of the communicator.
ncclResult_t nccl_meet_on_host(struct ncclComm *comm);

// Between two looks at others, of which there were so many: the first ones are close.
void nccl_pause_after(unsigned looks);
