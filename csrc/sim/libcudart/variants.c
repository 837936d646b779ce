#include "variants.h"

static cudaError_t capture_info(cudaStream_t stream,
                                enum cudaStreamCaptureStatus *status,
                                unsigned long long *id, cudaGraph_t *graph,
                                const cudaGraphNode_t **dependencies,
                                const cudaGraphEdgeData **edges, size_t *count)
{
    cuuint64_t found = 0;
    CUresult result = cuStreamGetCaptureInfo_v3(stream, (CUstreamCaptureStatus *)status,
                                                &found, graph, dependencies,
                                                (const CUgraphEdgeData **)edges, count);

    if (id != NULL)
        *id = found;
    return rt_result(result);
}

static cudaError_t dependencies_of(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                   cudaGraphEdgeData *edges, size_t *count)
{
    return rt_result(
        cuGraphNodeGetDependencies_v2(node, nodes, (CUgraphEdgeData *)edges, count));
}

#if CUDART_VERSION >= 13000

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count)
{
    return capture_info(stream, status, id, graph, dependencies, edges, count);
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                         cudaGraphEdgeData *edges, size_t *count)
{
    return dependencies_of(node, nodes, edges, count);
}

void rt_fill_older(struct cudaDeviceProp *prop, int device)
{
    (void)prop, (void)device; // attributes alone tell these
}

#else

// The headers rename it to cudaStreamGetCaptureInfo_v2, as they do with
// cudaGetDeviceProperties.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     size_t *count)
{
    return capture_info(stream, status, id, graph, dependencies, NULL, count);
}

cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream,
                                        enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **dependencies,
                                        const cudaGraphEdgeData **edges, size_t *count)
{
    return capture_info(stream, status, id, graph, dependencies, edges, count);
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                         size_t *count)
{
    return dependencies_of(node, nodes, NULL, count);
}

cudaError_t cudaGraphNodeGetDependencies_v2(cudaGraphNode_t node,
                                            cudaGraphNode_t *nodes,
                                            cudaGraphEdgeData *edges, size_t *count)
{
    return dependencies_of(node, nodes, edges, count);
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function,
                                    unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags,
                                            status);
}

cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return cudaEventElapsedTime(ms, start, end);
}

void rt_fill_older(struct cudaDeviceProp *prop, int device)
{
    cudaDeviceGetAttribute(&prop->clockRate, cudaDevAttrClockRate, device);
    cudaDeviceGetAttribute(&prop->memoryClockRate, cudaDevAttrMemoryClockRate, device);
    cudaDeviceGetAttribute(&prop->deviceOverlap, cudaDevAttrGpuOverlap, device);
}

#endif
