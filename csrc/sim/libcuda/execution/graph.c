/* graph.c - graphs, and executable ones: what they hold, and their launch. */
#include "libcuda/objects/graph.h"
#include "libcuda/base/slab.h"
#include "libcuda/engine/submit.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/event.h"
#include "libcuda/execution/stream.h"
#include "libcuda/objects/nodes.h"
#include "libcuda/objects/operator.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/report.h"

#include <stdio.h>
#include <string.h>

// ---- graphs

static CUresult check_graph(CUgraph graph)
{
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_live(&graph->object))
        return sim_misuse(CUDA_ERROR_INVALID_VALUE, "graph %p was destroyed",
                          (void *)graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_graph(graph);
    if (result == CUDA_SUCCESS)
        sim_graph_destroy(graph);
    return sim_leave(result, "%p", (void *)graph);
}

// Writes as many nodes as there is room for, and says how many there are.
static void give_nodes(const sim_nodes_t *nodes, CUgraphNode *out, size_t *count)
{
    size_t room = out != NULL ? *count : 0;

    *count = room < nodes->count && out != NULL ? room : nodes->count;
    if (out != NULL && *count > 0)
        memcpy(out, nodes->items, *count * sizeof(CUgraphNode));
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CUresult result = sim_enter_checked(__func__, count != NULL);

    if (result == CUDA_SUCCESS)
        result = check_graph(graph);
    if (result == CUDA_SUCCESS)
        give_nodes(&graph->nodes, nodes, count);
    return sim_leave(result, "%p", (void *)graph);
}

static CUresult dependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    if (node == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    give_nodes(&node->dependencies, nodes, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return SIM_CALL(dependencies(node, nodes, count), "%p", (void *)node);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes,
                                       CUgraphEdgeData *edges, size_t *count)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = dependencies(node, nodes, count);
    if (result == CUDA_SUCCESS && nodes != NULL && edges != NULL)
        memset(edges, 0, *count * sizeof *edges);
    return sim_leave(result, "%p", (void *)node);
}

static CUgraphNodeType node_type(const sim_work_t *work)
{
    switch (work->kind) {
    case SIM_WORK_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SIM_WORK_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SIM_WORK_CALL:
        return CU_GRAPH_NODE_TYPE_HOST;
    case SIM_WORK_RECORD:
        return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case SIM_WORK_WAIT:
        return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case SIM_WORK_WAIT_VALUE:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case SIM_WORK_GRAPH_ALLOC:
        return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case SIM_WORK_GRAPH_FREE:
        return CU_GRAPH_NODE_TYPE_MEM_FREE;
    default:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    }
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    CUresult result = sim_enter_checked(__func__, node != NULL && type != NULL);

    if (result == CUDA_SUCCESS)
        *type = node_type(&node->work);
    return sim_leave(result, "%p", (void *)node);
}

static const char *type_name(CUgraphNodeType type)
{
    static const char *const names[] = {
        [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
        [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
        [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
        [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
        [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "WAIT_EVENT",
        [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
        [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",
        [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
        [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
    };

    return names[type];
}

static CUresult print(CUgraph graph, const char *path)
{
    CUresult result = check_graph(graph);

    if (result == CUDA_SUCCESS && path == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    for (size_t i = 0; i < graph->nodes.count; i++) {
        CUgraphNode node = graph->nodes.items[i];
        fprintf(file, "\"%p\" [label=\"%s\"];\n", (void *)node,
                type_name(node_type(&node->work)));
        for (size_t d = 0; d < node->dependencies.count; d++)
            fprintf(file, "\"%p\" -> \"%p\";\n", (void *)node->dependencies.items[d],
                    (void *)node);
    }
    fprintf(file, "}\n");
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags)
{
    return SIM_CALL(print(graph, path), "%p, %u", (void *)graph, flags);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph)
{
    CUresult result = check_graph(graph);

    if (result == CUDA_SUCCESS && out == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    CUgraphExec exec = sim_exec_create(graph);
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                     unsigned long long flags)
{
    return SIM_CALL(instantiate(exec, graph), "%p, %llu", (void *)graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = instantiate(exec, graph);
    if (params != NULL && result == CUDA_SUCCESS)
        params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return sim_leave(result, "%p", (void *)graph);
}

static CUresult check_exec(CUgraphExec exec)
{
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_live(&exec->object))
        return sim_misuse(CUDA_ERROR_INVALID_VALUE, "executable graph %p was destroyed",
                          (void *)exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = sim_enter(__func__);

    if (result == CUDA_SUCCESS)
        result = check_exec(exec);
    if (result == CUDA_SUCCESS)
        sim_exec_destroy(exec);
    return sim_leave(result, "%p", (void *)exec);
}

// Takes over what the nodes of `graph` do, if they are of the same types in the same
// order; dependencies have no effect here.
static CUresult update(CUgraphExec exec, CUgraph graph,
                       CUgraphExecUpdateResultInfo *info)
{
    CUresult result = check_exec(exec);

    if (result == CUDA_SUCCESS)
        result = check_graph(graph);
    if (result == CUDA_SUCCESS && info == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    if (exec->count != graph->nodes.count)
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < exec->count && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS;
         i++) {
        CUgraphNode node = graph->nodes.items[i];
        if (node_type(&exec->works[i]) == node_type(&node->work))
            continue;
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        info->errorNode = node;
    }
    if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    sim_exec_update(exec, graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                              CUgraphExecUpdateResultInfo *info)
{
    return SIM_CALL(update(exec, graph, info), "%p, %p", (void *)exec, (void *)graph);
}

static CUresult replay(const sim_work_t *work, CUstream stream)
{
    if (work->event != NULL && work->event->object.generation != work->generation)
        return sim_misuse(CUDA_ERROR_INVALID_HANDLE,
                          "the graph uses an event that was destroyed");
    if (work->kind == SIM_WORK_RECORD)
        return sim_event_record(work->event, stream);
    if (work->kind == SIM_WORK_WAIT)
        return sim_event_wait(work->event, stream);
    sim_work_share(work);
    return sim_queue_submit(stream, work, NULL);
}

// All work goes to the launching stream, one after the other.
static CUresult launch(CUgraphExec exec, CUstream handle)
{
    bool is_waited_for = false;
    CUstream stream;
    CUresult result = check_exec(exec);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    for (size_t i = 0; result == CUDA_SUCCESS && i < exec->count; i++) {
        const sim_compute_t *compute = exec->works[i].compute;
        is_waited_for |= compute != NULL && compute->what.is_waited_for;
        result = replay(&exec->works[i], stream);
    }
    if (is_waited_for && stream->capture == NULL)
        sim_queue_wait_for_stream(stream);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return SIM_CALL(launch(exec, stream), "%p, %p", (void *)exec, (void *)stream);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return SIM_CALL(check_exec(exec), "%p, %p", (void *)exec, (void *)stream);
}
