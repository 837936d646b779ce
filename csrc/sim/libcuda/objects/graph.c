#include "libcuda/objects/graph.h"

#include "libcuda/memory/allocation.h"

#include <stdlib.h>

static sim_slab_t graphs = {.object_bytes = sizeof(struct CUgraph_st)};
static sim_slab_t execs = {.object_bytes = sizeof(struct CUgraphExec_st)};

CUgraph sim_graph_create(void)
{
    CUgraph graph = sim_slab_take(&graphs);

    if (graph != NULL) {
        graph->nodes = (sim_nodes_t){0};
        graph->users = (sim_users_t){0};
    }
    return graph;
}

static void free_node(CUgraphNode node)
{
    if (node->work.kind == SIM_WORK_GRAPH_ALLOC)
        sim_memory_graph_unhold(node->work.dst);
    sim_work_discard(&node->work);
    sim_nodes_clear(&node->dependencies);
    free(node);
}

void sim_graph_destroy(CUgraph graph)
{
    for (size_t i = 0; i < graph->nodes.count; i++)
        free_node(graph->nodes.items[i]);
    sim_nodes_clear(&graph->nodes);
    sim_users_clear(&graph->users);
    sim_slab_give(&graphs, &graph->object);
}

CUgraphNode sim_graph_add(CUgraph graph, const sim_work_t *work,
                          const sim_nodes_t *dependencies)
{
    CUgraphNode node = calloc(1, sizeof *node);

    if (node == NULL)
        return NULL;
    if (!sim_nodes_copy(&node->dependencies, dependencies) ||
        !sim_nodes_append(&graph->nodes, node))
        goto undo_node;
    node->work = *work;
    for (size_t i = 0; i < dependencies->count; i++)
        dependencies->items[i]->has_dependents = true;
    return node;

undo_node:
    free_node(node);
    return NULL;
}

// ---- executable graphs

// An executable graph needs what its work uses, even without the graph.
static void hold(const sim_work_t *work)
{
    sim_work_share(work);
    if (work->kind == SIM_WORK_GRAPH_ALLOC)
        sim_memory_graph_hold(work->dst);
}

static void unhold(const sim_work_t *work)
{
    sim_work_unshare(work);
    if (work->kind == SIM_WORK_GRAPH_ALLOC)
        sim_memory_graph_unhold(work->dst);
}

CUgraphExec sim_exec_create(const struct CUgraph_st *graph)
{
    CUgraphExec exec = sim_slab_take(&execs);

    if (exec == NULL)
        return NULL;
    exec->count = graph->nodes.count;
    exec->works = malloc((exec->count + 1) * sizeof(sim_work_t));
    if (exec->works == NULL || !sim_users_copy(&exec->users, &graph->users)) {
        free(exec->works);
        exec->works = NULL;
        sim_slab_give(&execs, &exec->object);
        return NULL;
    }
    for (size_t i = 0; i < exec->count; i++) {
        exec->works[i] = graph->nodes.items[i]->work;
        hold(&exec->works[i]);
    }
    return exec;
}

void sim_exec_update(CUgraphExec exec, const struct CUgraph_st *graph)
{
    for (size_t i = 0; i < exec->count; i++) {
        const sim_work_t before = exec->works[i];
        exec->works[i] = graph->nodes.items[i]->work;
        hold(&exec->works[i]);
        unhold(&before);
    }
}

void sim_exec_destroy(CUgraphExec exec)
{
    for (size_t i = 0; exec->works != NULL && i < exec->count; i++)
        unhold(&exec->works[i]);
    free(exec->works);
    exec->works = NULL;
    sim_users_clear(&exec->users);
    sim_slab_give(&execs, &exec->object);
}

void sim_graph_reset(void)
{
    CUgraph graph;
    CUgraphExec exec;

    for (uint32_t i = 0; (graph = sim_slab_next(&graphs, &i)) != NULL;)
        sim_graph_destroy(graph);
    for (uint32_t i = 0; (exec = sim_slab_next(&execs, &i)) != NULL;)
        sim_exec_destroy(exec);
}
