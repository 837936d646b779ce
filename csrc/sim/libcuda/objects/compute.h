/* compute.h - work that computes: a function of the host that stands for a kernel, and
 * the memory that it reads and writes. Shared by the operations and graph nodes that
 * run it. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "sim.h"

#include <stdbool.h>

typedef struct sim_compute {
    oomph_sim_compute_t what; // with ranges of its own
    unsigned owners;
} sim_compute_t;

// Whether this thread's calls move no bytes (oomph_sim_dry()).
bool sim_is_dry(void);
// Counts a copy to the host among these.
void sim_count_dry_read(void);

// With one owner. NULL without host memory.
sim_compute_t *sim_compute_new(const oomph_sim_compute_t *what);
void sim_compute_share(sim_compute_t *compute);
// Drops an owner; releases what is computed with the last. NULL is ignored.
void sim_compute_drop(sim_compute_t *compute);

// Whether any range overlaps; with `writes`, only those that are written.
bool sim_compute_touches(const sim_compute_t *compute, uint64_t addr, uint64_t bytes,
                         bool writes);
