/* waits.h - whom the ranks of a communicator wait for, and whether that can end.
 *
 * A rank comes to one call after the other, and waits at each until those have come
 * that it needs. Ranks that wait for each other, or for one that is gone, would do so
 * for ever: with a real NCCL, until a watchdog ends them.
 */
#pragma once
#include "libnccl/ranks/communicator.h"

// Where a rank waits.
typedef enum nccl_reason {
    NCCL_WAITS_NOT,
    NCCL_WAITS_TO_MEET,
    NCCL_WAITS_FOR_MESSAGE,
    NCCL_WAITS_FOR_RECEIPT,
} nccl_reason_t;

// It, and at which one: both stay the same as long as the rank waits there.
typedef struct nccl_wait {
    nccl_reason_t reason;
    uint64_t number;
} nccl_wait_t;

// The first rank that the communicator's own waits for, and where; -1: it does not.
int nccl_waits_for(const struct ncclComm *comm, nccl_wait_t *wait);

// Whether a thread of the program stands still until that wait ends.
bool nccl_holds_program(const struct ncclComm *comm, int other, nccl_wait_t wait);

// Whether any of the others has left, or all have.
bool nccl_others_have_left(const struct ncclComm *comm, bool all);

// Fails the communicator if a rank's process was killed, or if its own waits for one
// that has left it, or is one of some that wait for each other.
void nccl_look_after(struct ncclComm *comm);
