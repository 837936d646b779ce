/* operator.h - what stands for an operator of a program: a function of the host that
 * computes in the place of a kernel, and what the operator costs. Both are shared by
 * the operations and graph nodes that have them. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "sim.h"

#include <stdbool.h>

typedef struct sim_compute {
    unsigned owners;
    oomph_sim_compute_t what; // with ranges of its own
} sim_compute_t;

typedef struct sim_cost {
    unsigned owners;
    oomph_sim_cost_t what; // with uses of its own
} sim_cost_t;

// With one owner. NULL without host memory.
sim_compute_t *sim_compute_new(const oomph_sim_compute_t *what);
sim_cost_t *sim_cost_new(const oomph_sim_cost_t *what);
// Drop an owner; the last one releases what is computed. NULL is ignored.
void sim_compute_drop(sim_compute_t *compute);
void sim_cost_drop(sim_cost_t *cost);

// Whether any range overlaps; with `writes`, only those that are written.
bool sim_compute_touches(const sim_compute_t *compute, uint64_t addr, uint64_t bytes,
                         bool writes);

// Whether this thread's calls move no bytes (oomph_sim_dry()).
bool sim_is_dry(void);
// Counts a copy to the host among these.
void sim_count_dry_read(void);

// Whether this thread is inside an operator whose cost is reported as a whole.
bool sim_is_in_operator(void);
// Whether that has launched kernels: they may have written whatever it reads.
bool sim_is_behind_kernels(void);

// Counts a kernel of this thread's operator; a call of a library that stands for some.
void sim_cost_count_kernel(uint64_t blocks, unsigned block_threads);
void sim_cost_count_library_call(void);
// Begins or ends an operator (oomph_sim_operator()), but for the host's time.
oomph_sim_launched_t sim_cost_launched(int change, oomph_sim_launched_t before);
