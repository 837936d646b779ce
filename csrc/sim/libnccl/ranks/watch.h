/* watch.h - a thread that looks whether the ranks of this process go on.
 *
 * Ten times a second it looks after each communicator (waits.h). A rank may also wait
 * for one that waits elsewhere: in another communicator, or in PyTorch, for a group to
 * be made. Such a rank stands still: for two seconds no thread of its process has had
 * much to do, and its program is in PyTorch. When all ranks of the world do, what they
 * wait for fails, with the line that each is at. The world is what PyTorch calls so; if
 * it has no communicator of all, nothing is known.
 */
#pragma once
#include "libnccl/ranks/communicator.h"

// From when all ranks have joined until the communicator is given back. A system that
// has no thread left for it is not an error: the watch is missing.
void nccl_watch(struct ncclComm *comm);
void nccl_unwatch(struct ncclComm *comm);

// What the rank calls is its last call in all communicators of its device, too: others
// see it there when it has left the one that it calls in.
void nccl_watch_call(struct ncclComm *comm, const nccl_call_t *call);

// While a thread waits for others on the host, in this communicator.
void nccl_watch_host(struct ncclComm *comm, bool waits);
