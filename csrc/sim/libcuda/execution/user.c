/* user.c - the calls for objects of the program that graphs hold. */
#include "libcuda/objects/user.h"
#include "libcuda/execution/call.h"
#include "libcuda/objects/graph.h"
#include "libcuda/session/report.h"

static CUresult check_user(CUuserObject user, unsigned count)
{
    if (user == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_live(&user->object))
        return sim_misuse(CUDA_ERROR_INVALID_VALUE, "user object %p was destroyed",
                          (void *)user);
    return CUDA_SUCCESS;
}

static CUresult create(CUuserObject *out, void *argument, CUhostFn destroy,
                       unsigned count, unsigned flags)
{
    if (out == NULL || destroy == NULL || count == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    *out = sim_user_create(destroy, argument, count);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuUserObjectCreate(CUuserObject *user, void *argument, CUhostFn destroy,
                            unsigned count, unsigned flags)
{
    return SIM_CALL(create(user, argument, destroy, count, flags), "%p, %u", argument,
                    count);
}

CUresult cuUserObjectRetain(CUuserObject user, unsigned count)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_user(user, count);
    if (result == CUDA_SUCCESS)
        user->hold_count += count;
    return sim_leave(result, "%p, %u", (void *)user, count);
}

static CUresult misheld(CUuserObject user, unsigned count)
{
    return sim_misuse(CUDA_ERROR_INVALID_VALUE, "user object %p is not held %u times",
                      (void *)user, count);
}

CUresult cuUserObjectRelease(CUuserObject user, unsigned count)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_user(user, count);
    if (result == CUDA_SUCCESS && !sim_user_release(user, count))
        result = misheld(user, count);
    return sim_leave(result, "%p, %u", (void *)user, count);
}

static CUresult check_both(CUgraph graph, CUuserObject user, unsigned count)
{
    if (graph == NULL || !sim_is_live(&graph->object))
        return CUDA_ERROR_INVALID_VALUE;
    return check_user(user, count);
}

// With CU_GRAPH_USER_OBJECT_MOVE the graph takes over what the caller holds.
static CUresult retain(CUgraph graph, CUuserObject user, unsigned count, unsigned flags)
{
    CUresult result = check_both(graph, user, count);

    if (result == CUDA_SUCCESS && (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !sim_users_add(&graph->users, user, count))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && flags == 0)
        user->hold_count += count;
    return result;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject user, unsigned count,
                                 unsigned flags)
{
    return SIM_CALL(retain(graph, user, count, flags), "%p, %p, %u", (void *)graph,
                    (void *)user, count);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject user, unsigned count)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_both(graph, user, count);
    if (result == CUDA_SUCCESS && !sim_users_release(&graph->users, user, count))
        result = misheld(user, count);
    return sim_leave(result, "%p, %p, %u", (void *)graph, (void *)user, count);
}
