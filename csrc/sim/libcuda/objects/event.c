#include "libcuda/objects/event.h"

#include "libcuda/objects/context.h"
#include "libcuda/objects/mark.h"
#include "libcuda/session/report.h"

static sim_slab_t events = {.object_bytes = sizeof(struct CUevent_st)};

CUresult sim_event_check(CUevent event)
{
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_is_live(&event->object))
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE, "event %p was destroyed",
                          (void *)event);
    return CUDA_SUCCESS;
}

void sim_event_complete(CUevent event, uint32_t generation, uint64_t now_ns)
{
    if (event->object.generation == generation)
        event->end_ns = now_ns;
}

void sim_event_reset(void)
{
    sim_slab_give_all(&events);
}

CUresult sim_event_create(CUevent *out, unsigned flags, const sim_mark_t *mark)
{
    CUcontext context;
    sim_mark_t shown = {0};
    const unsigned known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    CUresult result = sim_context_usable(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || (flags & ~known) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    if (mark != NULL)
        shown = *mark;
    else if (flags & CU_EVENT_INTERPROCESS)
        result = sim_mark_take(&shown);
    if (result != CUDA_SUCCESS)
        return result;
    CUevent event = sim_slab_take(&events);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *event = (struct CUevent_st){
        .object = event->object,
        .context = context,
        .flags = flags,
        .frontier = event->frontier, // keeps its storage
        .mark = shown,
    };
    *out = event;
    return CUDA_SUCCESS;
}

void sim_event_destroy(CUevent event)
{
    sim_slab_give(&events, &event->object);
}
