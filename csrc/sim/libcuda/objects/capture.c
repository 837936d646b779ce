#include "libcuda/objects/capture.h"

#include "libcuda/objects/stream.h"
#include "libcuda/session/call.h"

static sim_slab_t captures = {.object_bytes = sizeof(sim_capture_t)};
static _Atomic uint32_t
    active_count; // read without the lock: programs ask all the time
static uint64_t next_id = 1;

// How the thread wants unsafe calls to be treated, and what tells it from others.
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static const void *this_thread(void)
{
    return &thread_mode;
}

void sim_capture_invalidate(sim_capture_t *capture)
{
    capture->is_invalid = true;
}

bool sim_capture_is_active(const sim_capture_t *capture, uint64_t id)
{
    return sim_is_live(&capture->object) && capture->id == id;
}

void sim_capture_reset(void)
{
    sim_slab_give_all(&captures);
    active_count = 0;
}

// ---- what is forbidden meanwhile

static bool forbids(const sim_capture_t *capture)
{
    bool is_ours = capture->owner == this_thread();

    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return is_ours || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                       thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_capture_forbid(void)
{
    CUresult result = CUDA_SUCCESS;

    if (active_count == 0)
        return CUDA_SUCCESS;
    for (uint32_t i = 0; i < captures.count; i++) {
        sim_capture_t *capture = sim_slab_at(&captures, i);
        if (!sim_is_live(&capture->object) || !forbids(capture))
            continue;
        sim_capture_invalidate(capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult sim_capture_forbid_in_context(CUcontext context)
{
    CUresult result = sim_capture_forbid();
    CUstream stream;

    if (active_count == 0)
        return CUDA_SUCCESS;
    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++) {
        if (stream->context == context && stream->capture != NULL)
            result = sim_capture_refuse(stream);
    }
    return result;
}

CUresult sim_capture_refuse(CUstream stream)
{
    sim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// A stream of the context that captures and orders itself with the default stream.
static CUstream find_implicit(CUcontext context)
{
    CUstream stream;

    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++) {
        if (stream->context == context && stream->capture != NULL &&
            sim_stream_is_blocking(stream))
            return stream;
    }
    return NULL;
}

static CUresult check_implicit(CUstream stream)
{
    CUstream other = stream->is_default ? find_implicit(stream->context) : NULL;

    if (other == NULL)
        return CUDA_SUCCESS;
    sim_capture_invalidate(other->capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sim_capture_forbid_wait(CUstream stream)
{
    return stream->capture != NULL ? sim_capture_refuse(stream)
                                   : check_implicit(stream);
}

// ---- recording

CUresult sim_capture_intercept(CUstream stream, const sim_work_t *work, bool *captured)
{
    *captured = false;
    if (active_count == 0)
        return CUDA_SUCCESS;
    if (stream->capture == NULL)
        return check_implicit(stream);
    if (stream->capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUgraphNode node = sim_graph_add(stream->capture->graph, work, &stream->frontier);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *captured = true;
    stream->frontier.count = 0;
    return sim_nodes_add(&stream->frontier, node) ? CUDA_SUCCESS
                                                  : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_capture_join(CUstream stream, sim_capture_t *capture,
                          const sim_nodes_t *nodes)
{
    if (stream->is_default) {
        sim_capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture == NULL)
        stream->frontier.count = 0;
    if (!sim_nodes_add_all(&stream->frontier, nodes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

// ---- begin and end

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
    CUgraph graph = sim_graph_create();
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_capture_t *capture = sim_slab_take(&captures);
    if (capture == NULL) {
        sim_graph_destroy(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (sim_capture_t){
        .object = capture->object,
        .id = next_id++,
        .mode = mode,
        .owner = this_thread(),
        .origin = stream,
        .graph = graph,
    };
    stream->capture = capture;
    stream->frontier.count = 0;
    active_count++;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    CUresult result = sim_enter("cuStreamBeginCapture_v2");

    if (result == CUDA_SUCCESS && (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = begin(stream, mode);
    return sim_leave(result, "%p, %d", (void *)stream, (int)mode);
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

static void finish(sim_capture_t *capture)
{
    CUstream stream;

    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++) {
        if (stream->capture == capture)
            stream->capture = NULL;
    }
    sim_slab_give(&captures, &capture->object);
    active_count--;
}

void sim_capture_leave(CUstream stream)
{
    sim_capture_t *capture = stream->capture;

    if (capture == NULL)
        return;
    sim_capture_invalidate(capture);
    if (capture->origin == stream) {
        sim_graph_destroy(capture->graph);
        finish(capture);
    }
    stream->capture = NULL;
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
        capture->owner != this_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->is_invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS && graph != NULL)
        *graph = capture->graph;
    else
        sim_graph_destroy(capture->graph);
    finish(capture);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUresult result = sim_enter("cuStreamEndCapture");

    if (result == CUDA_SUCCESS)
        result = end(stream, graph);
    return sim_leave(result, "%p", (void *)stream);
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
        find_implicit((*stream)->context) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return result;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream stream;

    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (active_count == 0)
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
    if (active_count == 0)
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
    CUstreamCaptureMode previous = thread_mode;
    thread_mode = *mode;
    *mode = previous;
    return CUDA_SUCCESS;
}
