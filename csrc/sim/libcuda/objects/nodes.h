/* nodes.h - sets of nodes of a graph. The caller holds the driver's lock. */
#pragma once
#include "libcuda/base/cuda_api.h"

#include <stdbool.h>
#include <stddef.h>

// A set of nodes, without duplicates.
typedef struct sim_nodes {
    CUgraphNode *items;
    size_t count, capacity;
} sim_nodes_t;

// All four: false when the host has no memory; then the set is unchanged.
// Of a node that is new to the set.
bool sim_nodes_append(sim_nodes_t *nodes, CUgraphNode node);
bool sim_nodes_add(sim_nodes_t *nodes, CUgraphNode node);
bool sim_nodes_add_all(sim_nodes_t *nodes, const sim_nodes_t *more);
bool sim_nodes_copy(sim_nodes_t *nodes, const sim_nodes_t *from);
void sim_nodes_clear(sim_nodes_t *nodes);
bool sim_nodes_contain(const sim_nodes_t *nodes, CUgraphNode node);
