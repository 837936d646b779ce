/* ipc.c - allocations and events of other processes. */
#include "rt.h"

#include <string.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle) &&
                   sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle),
               "the runtime's handles are the driver's");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *place)
{
    return RT_BOUND(
        cuIpcGetMemHandle((CUipcMemHandle *)(void *)handle, rt_address(place)));
}

cudaError_t cudaIpcOpenMemHandle(void **place, cudaIpcMemHandle_t handle,
                                 unsigned flags)
{
    CUipcMemHandle same;
    CUdeviceptr addr = 0;

    if (place == NULL)
        return rt_error(cudaErrorInvalidValue);
    if (!rt_bind())
        return cudaPeekAtLastError();
    memcpy(&same, &handle, sizeof same);
    CUresult result = cuIpcOpenMemHandle(&addr, same, flags);
    if (result == CUDA_SUCCESS)
        *place = (void *)(uintptr_t)addr;
    return rt_result(result);
}

cudaError_t cudaIpcCloseMemHandle(void *place)
{
    return RT_BOUND(cuIpcCloseMemHandle(rt_address(place)));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    return RT_BOUND(cuIpcGetEventHandle((CUipcEventHandle *)(void *)handle, event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle same;

    memcpy(&same, &handle, sizeof same);
    return RT_BOUND(cuIpcOpenEventHandle(event, same));
}
