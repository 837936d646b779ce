#include "libcuda/objects/cost.h"

#include <stdlib.h>
#include <string.h>

static __thread int depth;             // of operators
static __thread unsigned kernel_count; // of the outermost one

bool sim_is_in_operator(void)
{
    return depth > 0;
}

void sim_cost_count_kernel(void)
{
    kernel_count++;
}

unsigned sim_cost_kernel_count(void)
{
    return kernel_count;
}

unsigned oomph_sim_operator(int change)
{
    if (depth == 0)
        kernel_count = 0;
    depth += change;
    return kernel_count;
}

sim_cost_t *sim_cost_new(const oomph_sim_cost_t *what)
{
    size_t bytes = what->use_count * sizeof what->uses[0];
    sim_cost_t *cost = malloc(sizeof *cost + bytes);

    if (cost == NULL)
        return NULL;
    oomph_sim_use_t *uses = (oomph_sim_use_t *)(cost + 1);
    if (bytes > 0)
        memcpy(uses, what->uses, bytes);
    *cost = (sim_cost_t){.what = *what, .owners = 1};
    cost->what.uses = uses;
    return cost;
}

void sim_cost_share(sim_cost_t *cost)
{
    if (cost != NULL)
        cost->owners++;
}

void sim_cost_drop(sim_cost_t *cost)
{
    if (cost != NULL && --cost->owners == 0)
        free(cost);
}
