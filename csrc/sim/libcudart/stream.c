/* stream.c - streams and events. */
#include "rt.h"

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return rt_bind() ? rt_result(cuStreamCreate(stream, flags)) : cudaPeekAtLastError();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority)
{
    return rt_bind() ? rt_result(cuStreamCreateWithPriority(stream, flags, priority))
                     : cudaPeekAtLastError();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return rt_result(cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return rt_bind() ? rt_result(cuStreamSynchronize(stream)) : cudaPeekAtLastError();
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return rt_bind() ? rt_result(cuStreamQuery(stream)) : cudaPeekAtLastError();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return rt_bind() ? rt_result(cuStreamWaitEvent(stream, event, flags))
                     : cudaPeekAtLastError();
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    return rt_bind() ? rt_result(cuStreamGetPriority(stream, priority))
                     : cudaPeekAtLastError();
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    return rt_bind() ? rt_result(cuStreamGetFlags(stream, flags))
                     : cudaPeekAtLastError();
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    return rt_bind() ? rt_result(cuStreamGetId(stream, id)) : cudaPeekAtLastError();
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    return rt_bind() ? rt_result(cuStreamGetDevice(stream, device))
                     : cudaPeekAtLastError();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void *argument)
{
    return rt_bind() ? rt_result(cuLaunchHostFunc(stream, function, argument))
                     : cudaPeekAtLastError();
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function,
                                  void *argument, unsigned flags)
{
    // The two kinds of function differ only in the type of the error, whose numbers
    // agree.
    const CUstreamCallback same = (CUstreamCallback)(void (*)(void))function;

    return rt_bind() ? rt_result(cuStreamAddCallback(stream, same, argument, flags))
                     : cudaPeekAtLastError();
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return rt_bind() ? rt_result(cuEventCreate(event, flags)) : cudaPeekAtLastError();
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return rt_result(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return rt_bind() ? rt_result(cuEventRecord(event, stream)) : cudaPeekAtLastError();
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags)
{
    return rt_bind() ? rt_result(cuEventRecordWithFlags(event, stream, flags))
                     : cudaPeekAtLastError();
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
