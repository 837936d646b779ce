#include "libcuda/objects/context.h"

#include "libcuda/base/cuda_api.h"

enum { STACK_MAX = 16 };

// The top is current to the thread. A NULL on the stack means that none is.
static __thread CUcontext stack[STACK_MAX];
static __thread int depth;

CUcontext sim_context_top(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult sim_context_push(CUcontext context)
{
    if (depth == STACK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult sim_context_replace(CUcontext context)
{
    if (depth == 0)
        return context != NULL ? sim_context_push(context) : CUDA_SUCCESS;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult sim_context_pop(void)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    return CUDA_SUCCESS;
}

CUresult sim_context_of_thread(CUcontext *context)
{
    CUcontext current = sim_context_top();

    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current->retain_count == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = current;
    return CUDA_SUCCESS;
}

CUresult sim_context_usable(CUcontext *context)
{
    CUresult result = sim_context_of_thread(context);

    return result == CUDA_SUCCESS ? (*context)->sticky : result;
}
