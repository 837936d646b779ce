/* context.c - primary contexts, and which is current to a thread. */
#include "libcuda/execution/context.h"

#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/stream.h"
#include "libcuda/memory/allocation.h"
#include "libcuda/memory/device.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/context.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "runtime.h"

int oomph_sim_current_device(void)
{
    return sim_context_top() != NULL ? sim_context_top()->device : -1;
}

static CUresult activate(CUcontext context)
{
    if (sim_config.context_bytes > sim_device_free_bytes(context))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->sticky = CUDA_SUCCESS;
    context->peers = 0;
    return sim_stream_create_default(context);
}

// What the context owned goes with it.
static void deactivate(CUcontext context)
{
    sim_queue_wait_for_context(context);
    sim_stream_destroy_all(context);
    sim_memory_free_all(context);
    context->retain_count = 0;
    context->flags = 0;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    CUcontext primary = sim_device(device);
    CUresult result = CUDA_SUCCESS;

    if (primary == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (primary->retain_count == 0)
        result = activate(primary);
    if (result != CUDA_SUCCESS)
        return result;
    primary->retain_count++;
    *context = primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return SIM_CALL(retain(context, device), "%d", device);
}

static CUresult release(CUdevice device)
{
    CUcontext primary = sim_device(device);

    if (primary == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (primary->retain_count == 0)
        return sim_misuse(
            CUDA_ERROR_INVALID_CONTEXT,
            "the context of device %d was released more often than retained", device);
    if (primary->retain_count == 1)
        deactivate(primary);
    else
        primary->retain_count--;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return SIM_CALL(release(device), "%d", device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS && sim_device(device) == NULL)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS && sim_device(device)->retain_count > 0)
        deactivate(sim_device(device));
    return sim_leave(result, "%d", device);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS && sim_device(device) == NULL)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        sim_device(device)->flags = flags;
    return sim_leave(result, "%d, %u", device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    CUresult result = sim_enter_checked(__func__, flags != NULL && active != NULL);

    if (result == CUDA_SUCCESS && sim_device(device) == NULL)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS) {
        *flags = sim_device(device)->flags;
        *active = sim_device(device)->retain_count > 0;
    }
    return sim_leave(result, "%d", device);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    return SIM_CALL(sim_context_replace(context), "%p", (void *)context);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = sim_enter_checked(__func__, context != NULL);

    if (result == CUDA_SUCCESS)
        *context = sim_context_top();
    return sim_return(result);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    return SIM_CALL(sim_context_push(context), "%p", (void *)context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = sim_enter(__func__);
    CUcontext popped = sim_context_top();

    if (result == CUDA_SUCCESS)
        result = sim_context_pop();
    if (result == CUDA_SUCCESS && context != NULL)
        *context = popped;
    return sim_return(result);
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = sim_enter_checked(__func__, id != NULL);

    if (result == CUDA_SUCCESS && context == NULL)
        result = sim_context_of_thread(&context);
    if (result == CUDA_SUCCESS)
        *id = (unsigned long long)context->device + 1;
    return sim_leave(result, "%p", (void *)context);
}

CUresult cuCtxGetFlags(unsigned *flags)
{
    CUcontext context;
    CUresult result = sim_enter_checked(__func__, flags != NULL);

    if (result == CUDA_SUCCESS)
        result = sim_context_of_thread(&context);
    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return sim_return(result);
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    CUresult result = sim_enter_checked(__func__, version != NULL);

    if (result == CUDA_SUCCESS)
        *version = 3020;
    return sim_leave(result, "%p", (void *)context);
}

static CUresult synchronize(CUcontext context)
{
    CUresult result = context->sticky;

    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid_in_context(context);
    if (result != CUDA_SUCCESS)
        return result;
    sim_queue_wait_for_context(context);
    return context->sticky;
}

// The context that is asked for, or the current one for NULL.
static CUresult find_context(CUcontext wanted, CUcontext *context)
{
    if (wanted == NULL)
        return sim_context_of_thread(context);
    *context = wanted;
    return wanted->retain_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_ctx_synchronize(CUcontext wanted)
{
    CUcontext context;
    CUresult result = sim_enter("cuCtxSynchronize");

    if (result == CUDA_SUCCESS)
        result = find_context(wanted, &context);
    if (result == CUDA_SUCCESS)
        result = synchronize(context);
    return sim_leave(result, "%p", (void *)wanted);
}

CUresult cuCtxSynchronize(void)
{
    return sim_ctx_synchronize(NULL);
}

CUresult sim_ctx_get_device_of(CUdevice *device, CUcontext wanted)
{
    CUcontext context;
    CUresult result = sim_enter_checked("cuCtxGetDevice", device != NULL);

    if (result == CUDA_SUCCESS)
        result = find_context(wanted, &context);
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return sim_leave(result, "%p", (void *)wanted);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    return sim_ctx_get_device_of(device, NULL);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = sim_context_of_thread(&context);
    if (result == CUDA_SUCCESS && least != NULL)
        *least = 0;
    if (result == CUDA_SUCCESS && greatest != NULL)
        *greatest = SIM_STREAM_PRIORITY_GREATEST;
    return sim_return(result);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext context;
    CUresult result = sim_enter_checked(__func__, value != NULL);

    if (result == CUDA_SUCCESS)
        result = sim_context_of_thread(&context);
    if (result == CUDA_SUCCESS)
        *value = limit == CU_LIMIT_STACK_SIZE ? 1024 : 8 << 20;
    return sim_leave(result, "%d", (int)limit);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;

    return SIM_CALL(sim_context_of_thread(&context), "%d, %zu", (int)limit, value);
}

static CUresult set_peer(CUcontext peer, bool enable)
{
    CUcontext context;
    CUresult result = sim_context_usable(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (peer == NULL || peer == context)
        return CUDA_ERROR_INVALID_CONTEXT;
    unsigned bit = 1u << peer->device;
    if (enable && (context->peers & bit))
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (!enable && !(context->peers & bit))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers ^= bit;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    return SIM_CALL(flags == 0 ? set_peer(peer, true) : CUDA_ERROR_INVALID_VALUE, "%p",
                    (void *)peer);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    return SIM_CALL(set_peer(peer, false), "%p", (void *)peer);
}
