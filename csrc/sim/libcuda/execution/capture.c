/* capture.c - the capture of streams into graphs: its begin and end, and questions. */
#include "libcuda/objects/capture.h"
#include "libcuda/base/lock.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/objects/graph.h"
#include "libcuda/objects/nodes.h"
#include "libcuda/session/session.h"

static CUresult begin(CUstream handle, CUstreamCaptureMode mode)
{
    CUstream stream;
    CUresult result = sim_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (stream->is_default)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    return sim_capture_begin(stream, mode);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return SIM_CALL((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED
                        ? begin(stream, mode)
                        : CUDA_ERROR_INVALID_VALUE,
                    "%p, %d", (void *)stream, (int)mode);
}

// Every node that nothing depends on must have been waited for by the origin.
static bool is_joined(const sim_capture_t *capture)
{
    const sim_nodes_t *nodes = &capture->graph->nodes;

    for (size_t i = 0; i < nodes->count; i++) {
        if (!nodes->items[i]->has_dependents &&
            !sim_nodes_contain(&capture->origin->frontier, nodes->items[i]))
            return false;
    }
    return true;
}

static CUresult end(CUstream handle, CUgraph *graph)
{
    CUstream stream;
    CUresult result = sim_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (graph != NULL)
        *graph = NULL;
    sim_capture_t *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        sim_capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        !sim_capture_is_of_thread(capture))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->is_invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS && graph != NULL)
        *graph = capture->graph;
    else
        sim_graph_destroy(capture->graph);
    sim_capture_finish(capture);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return SIM_CALL(end(stream, graph), "%p", (void *)stream);
}

// ---- questions: asked at every allocation, and safe at any time

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream)
{
    if (stream->capture == NULL)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// The stream to ask about. A default stream cannot be asked while that would make it
// wait for a capture; the question alone does no harm.
static CUresult find_to_ask(CUstream handle, CUstream *stream)
{
    CUresult result = sim_stream_find(handle, stream);

    if (result == CUDA_SUCCESS && (*stream)->is_default &&
        sim_capture_find_implicit((*stream)->context) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return result;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream stream;

    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!sim_capture_is_any())
        return CUDA_SUCCESS;
    sim_lock();
    CUresult result = find_to_ask(handle, &stream);
    if (result == CUDA_SUCCESS)
        *status = status_of(stream);
    sim_unlock();
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status,
                                   cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *count)
{
    CUstream stream;

    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (edges != NULL)
        *edges = NULL;
    if (!sim_capture_is_any())
        return CUDA_SUCCESS;
    sim_lock();
    CUresult result = find_to_ask(handle, &stream);
    if (result == CUDA_SUCCESS)
        *status = status_of(stream);
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (id != NULL)
            *id = stream->capture->id;
        if (graph != NULL)
            *graph = stream->capture->graph;
        if (dependencies != NULL)
            *dependencies = stream->frontier.items;
        if (count != NULL)
            *count = stream->frontier.count;
    }
    sim_unlock();
    return result;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                   cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL,
                                     count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                                cuuint64_t *id)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = sim_capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}
