/* cost.h - what an operator of a program costs: its arithmetic and the memory that it
 * works on. Shared by the operations and graph nodes that take the time for it. The
 * caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "sim.h"

#include <stdbool.h>

typedef struct sim_cost {
    oomph_sim_cost_t what; // with uses of its own
    unsigned owners;
} sim_cost_t;

// Whether this thread is inside an operator whose cost is told as a whole.
bool sim_is_in_operator(void);

// Counts a kernel of this thread's operator.
void sim_cost_count_kernel(void);
// The kernels of the current operator, or of the last one.
unsigned sim_cost_kernel_count(void);

// With one owner. NULL without host memory.
sim_cost_t *sim_cost_new(const oomph_sim_cost_t *what);
void sim_cost_share(sim_cost_t *cost);
// Drops an owner. NULL is ignored.
void sim_cost_drop(sim_cost_t *cost);
