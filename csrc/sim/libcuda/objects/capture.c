#include "libcuda/objects/capture.h"

#include "libcuda/base/slab.h"
#include "libcuda/objects/graph.h"
#include "libcuda/objects/nodes.h"
#include "libcuda/objects/work.h"

static sim_slab_t captures = {.object_bytes = sizeof(sim_capture_t)};
static _Atomic uint32_t
    active_count; // read without the lock: programs ask all the time
static uint64_t next_id = 1;

// How the thread wants unsafe calls to be treated, and what sets it apart from others.
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static const void *this_thread(void)
{
    return &thread_mode;
}

bool sim_capture_is_any(void)
{
    return active_count > 0;
}

bool sim_capture_is_of_thread(const sim_capture_t *capture)
{
    return capture->owner == this_thread();
}

CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode)
{
    CUstreamCaptureMode previous = thread_mode;

    thread_mode = mode;
    return previous;
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
    bool is_ours = sim_capture_is_of_thread(capture);

    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return is_ours || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                       thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_capture_forbid(void)
{
    CUresult result = CUDA_SUCCESS;
    sim_capture_t *capture;

    if (active_count == 0)
        return CUDA_SUCCESS;
    for (uint32_t i = 0; (capture = sim_slab_next(&captures, &i)) != NULL;) {
        if (!forbids(capture))
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

CUstream sim_capture_find_implicit(CUcontext context)
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
    CUstream other =
        stream->is_default ? sim_capture_find_implicit(stream->context) : NULL;

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

CUresult sim_capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
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

void sim_capture_finish(sim_capture_t *capture)
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
        sim_capture_finish(capture);
    }
    stream->capture = NULL;
}
