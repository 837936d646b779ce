/* stream.c - streams and events. */
#include "rt.h"

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamCreate(stream, CU_STREAM_DEFAULT)
                                            : result);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamCreate(stream, flags) : result);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS
                         ? cuStreamCreateWithPriority(stream, flags, priority)
                         : result);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return rt_result(cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamQuery(stream) : result);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamWaitEvent(stream, event, flags)
                                            : result);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamGetPriority(stream, priority)
                                            : result);
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamGetFlags(stream, flags) : result);
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamGetId(stream, id) : result);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuStreamGetDevice(stream, device)
                                            : result);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void *argument)
{
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS ? cuLaunchHostFunc(stream, function, argument) : result);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function,
                                  void *argument, unsigned flags)
{
    CUresult result = rt_bind();

    // The two kinds of function differ only in the type of the error, whose numbers
    // agree.
    if (result == CUDA_SUCCESS)
        result = cuStreamAddCallback(stream, (CUstreamCallback)(void (*)(void))function,
                                     argument, flags);
    return rt_result(result);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuEventCreate(event, CU_EVENT_DEFAULT)
                                            : result);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuEventCreate(event, flags) : result);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return rt_result(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUresult result = rt_bind();

    return rt_result(result == CUDA_SUCCESS ? cuEventRecord(event, stream) : result);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags)
{
    CUresult result = rt_bind();

    return rt_result(
        result == CUDA_SUCCESS ? cuEventRecordWithFlags(event, stream, flags) : result);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return rt_result(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return rt_result(cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return rt_result(cuEventElapsedTime(ms, start, end));
}
