/* graph.c - stream capture and graphs. */
#include "rt.h"

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return RT_BOUND(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return RT_BOUND(cuStreamEndCapture(stream, graph));
}

// Asked at every allocation: no context is needed to know that nothing captures.
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus *status)
{
    return rt_result(cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    return rt_result(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags)
{
    return RT_BOUND(cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    return RT_BOUND(cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    return RT_BOUND(cuGraphUpload(exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return rt_result(cuGraphDestroy(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return rt_result(cuGraphExecDestroy(exec));
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *user, void *argument,
                                 cudaHostFn_t destroy, unsigned count, unsigned flags)
{
    return rt_result(cuUserObjectCreate(user, argument, destroy, count, flags));
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t user, unsigned count)
{
    return rt_result(cuUserObjectRetain(user, count));
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t user, unsigned count)
{
    return rt_result(cuUserObjectRelease(user, count));
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t user,
                                      unsigned count, unsigned flags)
{
    return rt_result(cuGraphRetainUserObject(graph, user, count, flags));
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t user,
                                       unsigned count)
{
    return rt_result(cuGraphReleaseUserObject(graph, user, count));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    return rt_result(cuGraphGetNodes(graph, nodes, count));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    return rt_result(cuGraphNodeGetType(node, (CUgraphNodeType *)type));
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info)
{
    return rt_result(
        cuGraphExecUpdate(exec, graph, (CUgraphExecUpdateResultInfo *)(void *)info));
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags)
{
    return rt_result(cuGraphDebugDotPrint(graph, path, flags));
}
