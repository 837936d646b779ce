#include "libcuda/objects/nodes.h"

#include <stdlib.h>

bool sim_nodes_contain(const sim_nodes_t *nodes, CUgraphNode node)
{
    for (size_t i = 0; i < nodes->count; i++) {
        if (nodes->items[i] == node)
            return true;
    }
    return false;
}

static bool grow(sim_nodes_t *nodes, size_t count)
{
    if (count <= nodes->capacity)
        return true;
    size_t capacity = count < 4 ? 4 : count * 2;
    CUgraphNode *items = realloc(nodes->items, capacity * sizeof(CUgraphNode));
    if (items == NULL)
        return false;
    nodes->items = items;
    nodes->capacity = capacity;
    return true;
}

bool sim_nodes_append(sim_nodes_t *nodes, CUgraphNode node)
{
    if (!grow(nodes, nodes->count + 1))
        return false;
    nodes->items[nodes->count++] = node;
    return true;
}

bool sim_nodes_add(sim_nodes_t *nodes, CUgraphNode node)
{
    return sim_nodes_contain(nodes, node) || sim_nodes_append(nodes, node);
}

bool sim_nodes_add_all(sim_nodes_t *nodes, const sim_nodes_t *more)
{
    if (!grow(nodes, nodes->count + more->count))
        return false;
    for (size_t i = 0; i < more->count; i++)
        sim_nodes_add(nodes, more->items[i]);
    return true;
}

bool sim_nodes_copy(sim_nodes_t *nodes, const sim_nodes_t *from)
{
    if (!grow(nodes, from->count))
        return false;
    nodes->count = 0;
    return sim_nodes_add_all(nodes, from);
}

void sim_nodes_clear(sim_nodes_t *nodes)
{
    free(nodes->items);
    *nodes = (sim_nodes_t){0};
}
