#include "libcuda/objects/operator.h"

#include "libcuda/base/ranges.h"

#include <stdlib.h>
#include <string.h>

// This thread's.
static __thread int dry;
static __thread uint64_t dry_reads;
static __thread int depth;                     // of operators
static __thread oomph_sim_launched_t launched; // by the current one
static __thread unsigned outer_count;          // launched by those that called it

// A copy of `bytes` behind an object of `object_bytes`, made with it. NULL without host
// memory.
static void *new_with_copy(size_t object_bytes, const void *list, size_t bytes)
{
    char *object = malloc(object_bytes + bytes);

    if (object != NULL && bytes > 0)
        memcpy(object + object_bytes, list, bytes);
    return object;
}

sim_compute_t *sim_compute_new(const oomph_sim_compute_t *what)
{
    sim_compute_t *compute = new_with_copy(sizeof *compute, what->ranges,
                                           what->range_count * sizeof what->ranges[0]);

    if (compute == NULL)
        return NULL;
    *compute = (sim_compute_t){.owners = 1, .what = *what};
    compute->what.ranges = (const oomph_sim_range_t *)(compute + 1);
    return compute;
}

sim_cost_t *sim_cost_new(const oomph_sim_cost_t *what)
{
    sim_cost_t *cost =
        new_with_copy(sizeof *cost, what->uses, what->use_count * sizeof what->uses[0]);

    if (cost == NULL)
        return NULL;
    *cost = (sim_cost_t){.owners = 1, .what = *what};
    cost->what.uses = (const oomph_sim_use_t *)(cost + 1);
    return cost;
}

void sim_compute_drop(sim_compute_t *compute)
{
    if (compute == NULL || --compute->owners > 0)
        return;
    compute->what.release(compute->what.argument);
    free(compute);
}

void sim_cost_drop(sim_cost_t *cost)
{
    if (cost != NULL && --cost->owners == 0)
        free(cost);
}

bool sim_compute_touches(const sim_compute_t *compute, uint64_t addr, uint64_t bytes,
                         bool writes)
{
    for (size_t i = 0; i < compute->what.range_count; i++) {
        const oomph_sim_range_t *range = &compute->what.ranges[i];
        if ((!writes || range->writes) &&
            sim_overlap(range->addr, range->bytes, addr, bytes))
            return true;
    }
    return false;
}

// ---- what a thread is in

bool sim_is_dry(void)
{
    return dry > 0;
}

void sim_count_dry_read(void)
{
    dry_reads++;
}

uint64_t oomph_sim_dry(int change)
{
    dry += change;
    return dry_reads;
}

bool sim_is_in_operator(void)
{
    return depth > 0;
}

static unsigned count(oomph_sim_launched_t what)
{
    return what.kernel_count + what.library_call_count;
}

bool sim_is_behind_kernels(void)
{
    return depth > 0 && outer_count + count(launched) > 0;
}

void sim_cost_count_kernel(uint64_t blocks, unsigned block_threads)
{
    launched.kernel_count++;
    if (blocks * block_threads > launched.threads) {
        launched.threads = blocks * block_threads;
        launched.block_threads = block_threads;
    }
}

void sim_cost_count_library_call(void)
{
    launched.library_call_count++;
}

oomph_sim_launched_t sim_cost_launched(int change, oomph_sim_launched_t before)
{
    oomph_sim_launched_t ended = launched;

    if (change > 0 && depth > 0)
        outer_count += count(launched);
    depth += change;
    if (change < 0 && depth > 0)
        outer_count -= count(before);
    launched = before;
    return ended;
}
