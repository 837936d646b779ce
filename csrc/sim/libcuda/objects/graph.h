/* graph.h - graphs of work: recorded by a capture, replayed by a launch. The caller
 * holds the driver's lock.
 */
#pragma once
#include "libcuda/memory/slab.h"
#include "libcuda/objects/work.h"

// A set of nodes, without duplicates.
typedef struct sim_nodes {
    CUgraphNode *items;
    size_t count, capacity;
} sim_nodes_t;

struct CUgraphNode_st {
    sim_work_t work;
    sim_nodes_t dependencies;
    bool has_dependents;
};

struct CUgraph_st {
    sim_object_t object;
    sim_nodes_t nodes; // in an order that respects their dependencies
};

struct CUgraphExec_st {
    sim_object_t object;
    sim_work_t *works;
    size_t count;
};

// All three: false when the host has no memory; then the set is unchanged.
bool sim_nodes_add(sim_nodes_t *nodes, CUgraphNode node);
bool sim_nodes_add_all(sim_nodes_t *nodes, const sim_nodes_t *more);
bool sim_nodes_copy(sim_nodes_t *nodes, const sim_nodes_t *from);
void sim_nodes_clear(sim_nodes_t *nodes);
bool sim_nodes_contain(const sim_nodes_t *nodes, CUgraphNode node);

// NULL when the host has no memory.
CUgraph sim_graph_create(void);
void sim_graph_destroy(CUgraph graph);

// Adds a node that depends on `dependencies`, and owns what the work owns. NULL when
// the host has no memory.
CUgraphNode sim_graph_add(CUgraph graph, const sim_work_t *work,
                          const sim_nodes_t *dependencies);

void sim_graph_reset(void);
