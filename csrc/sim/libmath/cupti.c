/* cupti.c - NVIDIA's library for profilers, which needs tables of the real driver and
 * from CUDA 13.2 on looks for them until the stack ends. Calls fail: PyTorch's profiler
 * then does without the events of the GPU, and says so.
 */
#include "standin.h"

#pragma GCC visibility push(default)

int cuptiGetResultString(int result, const char **text);
int cuptiGetResultString(int result, const char **text)
{
    *text = "CUPTI is not part of the simulated GPU";
    return STANDIN_SUCCESS;
}

int cuptiGetVersion(uint32_t *version);
int cuptiGetVersion(uint32_t *version)
{
    *version = 0;
    return STANDIN_SUCCESS;
}

#pragma GCC visibility pop
