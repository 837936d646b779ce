#include "libcuda/objects/stream.h"

static sim_slab_t streams = {.object_bytes = sizeof(struct CUstream_st)};
static uint64_t next_id = 1;

CUstream sim_stream_at(uint32_t index)
{
    return sim_slab_at(&streams, index);
}

bool sim_stream_is_blocking(const struct CUstream_st *stream)
{
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

bool sim_stream_delays_default(const struct CUstream_st *stream)
{
    return !stream->is_default && sim_stream_is_blocking(stream);
}

// A stream object without work: a stream that was destroyed may have some left.
static CUstream take_drained(void)
{
    CUstream stream = sim_slab_take(&streams);

    if (stream == NULL || stream->pending_count == 0)
        return stream;
    CUstream other = take_drained();
    sim_slab_give(&streams, &stream->object);
    return other;
}

CUstream sim_stream_create(CUcontext context, unsigned flags, int priority)
{
    CUstream stream = take_drained();

    if (stream == NULL)
        return NULL;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = next_id++;
    stream->is_default = false;
    stream->held = false;
    stream->capture = NULL;
    stream->default_seen = 0;
    stream->seen_by_default = stream->enqueued_count;
    return stream;
}

void sim_stream_give(CUstream stream)
{
    sim_slab_give(&streams, &stream->object);
}

CUresult sim_stream_create_default(CUcontext context)
{
    CUstream stream = sim_stream_create(context, CU_STREAM_DEFAULT, 0);

    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->is_default = true;
    context->default_stream = stream;
    return CUDA_SUCCESS;
}

CUstream sim_stream_joint(CUcontext context)
{
    if (context->joint_stream == NULL)
        context->joint_stream = sim_stream_create(context, CU_STREAM_NON_BLOCKING, 0);
    return context->joint_stream;
}

void sim_stream_reset(void)
{
    for (uint32_t i = 0; i < streams.count; i++)
        sim_nodes_clear(&sim_stream_at(i)->frontier);
    sim_slab_give_all(&streams);
}
