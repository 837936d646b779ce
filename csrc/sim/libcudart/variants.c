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

static cudaError_t prefetch(const void *place, size_t bytes,
                            struct cudaMemLocation location, unsigned flags,
                            cudaStream_t stream)
{
    const CUmemLocation to = {.type = (CUmemLocationType)location.type,
                              .id = location.id};

    return RT_BOUND(cuMemPrefetchAsync_v2(rt_address(place), bytes, to, flags, stream));
}

static cudaError_t advise(const void *place, size_t bytes, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation location)
{
    const CUmemLocation at = {.type = (CUmemLocationType)location.type,
                              .id = location.id};

    return RT_BOUND(cuMemAdvise_v2(rt_address(place), bytes, (CUmem_advise)advice, at));
}

#if CUDART_VERSION >= 13000

cudaError_t cudaMemPrefetchAsync(const void *place, size_t bytes,
                                 struct cudaMemLocation location, unsigned flags,
                                 cudaStream_t stream)
{
    return prefetch(place, bytes, location, flags, stream);
}

cudaError_t cudaMemAdvise(const void *place, size_t bytes, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation location)
{
    return advise(place, bytes, advice, location);
}

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
    (void)prop, (void)device; // attributes alone have these
}

#else

cudaError_t cudaMemPrefetchAsync(const void *place, size_t bytes, int device,
                                 cudaStream_t stream)
{
    return RT_BOUND(cuMemPrefetchAsync(rt_address(place), bytes, device, stream));
}

cudaError_t cudaMemPrefetchAsync_v2(const void *place, size_t bytes,
                                    struct cudaMemLocation location, unsigned flags,
                                    cudaStream_t stream)
{
    return prefetch(place, bytes, location, flags, stream);
}

cudaError_t cudaMemAdvise(const void *place, size_t bytes, enum cudaMemoryAdvise advice,
                          int device)
{
    return RT_BOUND(
        cuMemAdvise(rt_address(place), bytes, (CUmem_advise)advice, device));
}

cudaError_t cudaMemAdvise_v2(const void *place, size_t bytes,
                             enum cudaMemoryAdvise advice,
                             struct cudaMemLocation location)
{
    return advise(place, bytes, advice, location);
}

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
