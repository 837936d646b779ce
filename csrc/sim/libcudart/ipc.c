/* ipc.c - allocations and events of other processes. */
#include "rt.h"

#include <string.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle) &&
                   sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle),
               "the runtime's handles are the driver's");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *place)
{
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS
            ? cuIpcGetMemHandle((CUipcMemHandle *)(void *)handle, rt_address(place))
            : result);
}

cudaError_t cudaIpcOpenMemHandle(void **place, cudaIpcMemHandle_t handle,
                                 unsigned flags)
{
    CUipcMemHandle same;
    CUdeviceptr addr = 0;
    CUresult result = rt_bind();

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    memcpy(&same, &handle, sizeof same);
    if (result == CUDA_SUCCESS)
        result = cuIpcOpenMemHandle(&addr, same, flags);
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)addr;
    return rt_result(result);
}

cudaError_t cudaIpcCloseMemHandle(void *place)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuIpcCloseMemHandle(rt_address(place))
                                            : result);
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS
            ? cuIpcGetEventHandle((CUipcEventHandle *)(void *)handle, event)
            : result);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle same;
    CUresult result = rt_bind();

    memcpy(&same, &handle, sizeof same);
    return rt_result(result == CUDA_SUCCESS ? cuIpcOpenEventHandle(event, same)
                                            : result);
}
