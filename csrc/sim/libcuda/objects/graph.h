/* graph.h - graphs of work: recorded by a capture, replayed by a launch. The caller
 * holds the driver's lock.
 *
 * Nodes are kept in the order in which they were captured, which respects their
 * dependencies: a launch gives them to one stream, one after the other. Branches that a
 * GPU would run side by side take their times in turn.
 */
#pragma once
#include "libcuda/base/slab.h"
#include "libcuda/objects/nodes.h"
#include "libcuda/objects/user.h"
#include "libcuda/objects/work.h"

struct CUgraphNode_st {
    sim_work_t work;
    sim_nodes_t dependencies;
    bool has_dependents;
};

struct CUgraph_st {
    sim_object_t object;
    sim_nodes_t nodes; // in an order that respects their dependencies
    sim_users_t users;
};

struct CUgraphExec_st {
    sim_object_t object;
    sim_work_t *works;
    size_t count;
    sim_users_t users;
};

// NULL when the host has no memory.
CUgraph sim_graph_create(void);
void sim_graph_destroy(CUgraph graph);

// Adds a node that depends on `dependencies`, and owns what the work owns. NULL when
// the host has no memory.
CUgraphNode sim_graph_add(CUgraph graph, const sim_work_t *work,
                          const sim_nodes_t *dependencies);

// What the nodes of a graph do, one after the other. It needs what their work uses,
// even without the graph. NULL when the host has no memory.
CUgraphExec sim_exec_create(const struct CUgraph_st *graph);
void sim_exec_destroy(CUgraphExec exec);

// Takes over what the nodes of a graph with as many do.
void sim_exec_update(CUgraphExec exec, const struct CUgraph_st *graph);

void sim_graph_reset(void);
