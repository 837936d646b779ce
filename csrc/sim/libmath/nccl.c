/* nccl.c - what NCCL says of itself, and what PyTorch calls of it when a process ends.
 * All else is refused, by the stubs of stubs.py; PyTorch's errors quote the texts.
 */
#include "standin.h"

#include "runtime.h"

enum { VERSION = 22800 };

#pragma GCC visibility push(default)

int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = VERSION;
    return STANDIN_SUCCESS;
}

const char *ncclGetErrorString(int status);
const char *ncclGetErrorString(int status)
{
    return status == STANDIN_SUCCESS ? "no error"
                                     : "NCCL is not part of the simulated GPU; use one "
                                       "device, or the backend gloo";
}

const char *ncclGetLastError(void *communicator);
const char *ncclGetLastError(void *communicator)
{
    return oomph_sim_refusal();
}

int ncclGroupStart(void);
int ncclGroupStart(void)
{
    return STANDIN_SUCCESS;
}

int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    return STANDIN_SUCCESS;
}

#pragma GCC visibility pop
