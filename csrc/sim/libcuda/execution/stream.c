#include "libcuda/execution/stream.h"

#include "libcuda/base/lock.h"
#include "libcuda/base/slab.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"

#include <pthread.h>

// This thread's CU_STREAM_PER_THREAD on each device, with the generation it had.
typedef struct thread_stream {
    CUstream stream;
    uint32_t generation;
} thread_stream_t;

static __thread thread_stream_t thread_streams[SIM_DEVICES_MAX];
static pthread_key_t thread_key;

// ---- creation and destruction

static void destroy(CUstream stream)
{
    sim_capture_leave(stream);
    if (stream->held)
        sim_queue_release(stream);
    sim_stream_give(stream);
}

void sim_stream_destroy_all(CUcontext context)
{
    CUstream stream;

    for (uint32_t i = 0; (stream = sim_stream_at(i)) != NULL; i++) {
        if (sim_is_live(&stream->object) && stream->context == context)
            destroy(stream);
    }
    context->default_stream = context->joint_stream = NULL;
}

// ---- the stream of a thread

static void destroy_thread_streams(void *of_thread)
{
    thread_stream_t *own = of_thread;

    sim_lock();
    for (int i = 0; i < SIM_DEVICES_MAX; i++) {
        CUstream stream = own[i].stream;
        if (stream != NULL && stream->object.generation == own[i].generation)
            destroy(stream);
    }
    sim_unlock();
}

static void create_key(void)
{
    pthread_key_create(&thread_key, destroy_thread_streams);
}

static CUresult find_thread_stream(CUcontext context, CUstream *stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    thread_stream_t *own = &thread_streams[context->device];

    pthread_once(&once, create_key);
    pthread_setspecific(thread_key, thread_streams);
    if (own->stream == NULL || own->stream->object.generation != own->generation) {
        own->stream = sim_stream_create(context, CU_STREAM_DEFAULT, 0);
        if (own->stream == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        own->generation = own->stream->object.generation;
    }
    *stream = own->stream;
    return CUDA_SUCCESS;
}

// Whether a handle names a stream that was made, not one of those that are always
// there.
static bool is_made(CUstream handle)
{
    return handle != NULL && handle != CU_STREAM_LEGACY &&
           handle != CU_STREAM_PER_THREAD;
}

CUresult sim_stream_find_any(CUstream handle, CUstream *stream)
{
    CUcontext context;

    if (is_made(handle)) {
        *stream = handle;
        return sim_is_live(&handle->object)
                   ? CUDA_SUCCESS
                   : sim_misuse(CUDA_ERROR_INVALID_HANDLE, "stream %p was destroyed",
                                (void *)handle);
    }
    CUresult result = sim_context_of_thread(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == CU_STREAM_PER_THREAD)
        return find_thread_stream(context, stream);
    *stream = context->default_stream;
    return CUDA_SUCCESS;
}

CUresult sim_stream_find(CUstream handle, CUstream *stream)
{
    CUresult result = sim_stream_find_any(handle, stream);

    return result == CUDA_SUCCESS ? (*stream)->context->sticky : result;
}

// ---- the driver calls

static CUresult create_user_stream(CUstream *out, unsigned flags, int priority)
{
    CUcontext context;
    CUresult result = sim_context_usable(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (priority > 0) // priorities out of range are moved into it
        priority = 0;
    if (priority < SIM_STREAM_PRIORITY_GREATEST)
        priority = SIM_STREAM_PRIORITY_GREATEST;
    CUstream stream = sim_stream_create(context, flags, priority);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return SIM_CALL(create_user_stream(stream, flags, 0), "%p, %u",
                    result == CUDA_SUCCESS ? (void *)*stream : NULL, flags);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    return SIM_CALL(create_user_stream(stream, flags, priority), "%p, %u, %d",
                    result == CUDA_SUCCESS ? (void *)*stream : NULL, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUstream stream;
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS && !is_made(handle))
        result = CUDA_ERROR_INVALID_HANDLE; // 0, 1 and 2 cannot be destroyed
    if (result == CUDA_SUCCESS)
        result = sim_stream_find_any(handle, &stream);
    if (result == CUDA_SUCCESS)
        destroy(stream);
    return sim_leave(result, "%p", (void *)handle);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid_wait(stream);
    if (result == CUDA_SUCCESS) {
        sim_queue_wait_for_stream(stream);
        result = stream->context->sticky;
    }
    return sim_leave(result, "%p", (void *)handle);
}

CUresult cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid_wait(stream);
    if (result == CUDA_SUCCESS && !sim_queue_is_idle(stream))
        result = CUDA_ERROR_NOT_READY;
    return sim_leave(result, "%p", (void *)handle);
}

// ---- questions about a stream; INVALID_VALUE if there is no place for the answer

// A macro, as C has no function for several types, and a type has no parentheses. In
// `told` the stream is `stream`.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define STREAM_QUESTION(function, type, told)                                          \
    CUresult function(CUstream handle, type *answer)                                   \
    {                                                                                  \
        CUstream stream;                                                               \
        CUresult result = sim_enter_checked(__func__, answer != NULL);                 \
                                                                                       \
        if (result == CUDA_SUCCESS)                                                    \
            result = sim_stream_find_any(handle, &stream);                             \
        if (result == CUDA_SUCCESS)                                                    \
            *answer = (told);                                                          \
        return sim_leave(result, "%p", (void *)handle);                                \
    }
// NOLINTEND(bugprone-macro-parentheses)

STREAM_QUESTION(cuStreamGetFlags, unsigned, stream->flags)
STREAM_QUESTION(cuStreamGetPriority, int, stream->priority)
STREAM_QUESTION(cuStreamGetId, unsigned long long, stream->id)
STREAM_QUESTION(cuStreamGetCtx, CUcontext, stream->context)
STREAM_QUESTION(cuStreamGetDevice, CUdevice, stream->context->device)
