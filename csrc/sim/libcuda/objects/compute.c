#include "libcuda/objects/compute.h"

#include "libcuda/base/ranges.h"

#include <stdlib.h>
#include <string.h>

static __thread int dry;
static __thread uint64_t dry_reads;

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

sim_compute_t *sim_compute_new(const oomph_sim_compute_t *what)
{
    size_t bytes = what->range_count * sizeof what->ranges[0];
    sim_compute_t *compute = malloc(sizeof *compute + bytes);

    if (compute == NULL)
        return NULL;
    oomph_sim_range_t *ranges = (oomph_sim_range_t *)(compute + 1);
    if (bytes > 0)
        memcpy(ranges, what->ranges, bytes);
    *compute = (sim_compute_t){.what = *what, .owners = 1};
    compute->what.ranges = ranges;
    return compute;
}

void sim_compute_share(sim_compute_t *compute)
{
    if (compute != NULL)
        compute->owners++;
}

void sim_compute_drop(sim_compute_t *compute)
{
    if (compute == NULL || --compute->owners > 0)
        return;
    compute->what.release(compute->what.argument);
    free(compute);
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
