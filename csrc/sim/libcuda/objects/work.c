#include "libcuda/objects/work.h"

#include "libcuda/base/ranges.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>

bool sim_work_writes(const sim_work_t *work, uint64_t addr, uint64_t bytes)
{
    if (work->compute != NULL)
        return sim_compute_touches(work->compute, addr, bytes, true);
    if (work->bytes == 0 || work->rows == 0 ||
        (work->kind == SIM_WORK_KERNEL && !work->writes))
        return false;
    return sim_overlap(work->dst, (work->rows - 1) * work->dst_pitch + work->bytes,
                       addr, bytes);
}

bool sim_work_touches(const sim_work_t *work, uint64_t addr, uint64_t bytes)
{
    if (work->compute != NULL)
        return sim_compute_touches(work->compute, addr, bytes, false);
    if (work->bytes == 0 || work->rows == 0)
        return false;
    uint64_t dst_bytes = (work->rows - 1) * work->dst_pitch + work->bytes;
    uint64_t src_bytes = (work->rows - 1) * work->src_pitch + work->bytes;
    return sim_overlap(work->dst, dst_bytes, addr, bytes) ||
           (work->src != 0 && !work->is_read &&
            sim_overlap(work->src, src_bytes, addr, bytes));
}

size_t sim_work_ranges(const sim_work_t *work, oomph_sim_range_t own[2],
                       const oomph_sim_range_t **ranges)
{
    size_t count = 0;

    *ranges = own;
    if (work->compute != NULL) {
        *ranges = work->compute->what.ranges;
        return work->compute->what.range_count;
    }
    if (work->kind == SIM_WORK_WAIT_VALUE || work->bytes == 0 || work->rows != 1)
        return 0;
    own[count++] = (oomph_sim_range_t){work->dst, work->bytes,
                                       work->kind != SIM_WORK_KERNEL || work->writes};
    if (work->src != 0 && !work->is_read)
        own[count++] = (oomph_sim_range_t){work->src, work->bytes, 0};
    return count;
}

bool sim_work_conflicts(const sim_work_t *a, const sim_work_t *b, uint64_t *addr)
{
    oomph_sim_range_t own_a[2], own_b[2];
    const oomph_sim_range_t *of_a, *of_b;
    size_t count_a = sim_work_ranges(a, own_a, &of_a),
           count_b = sim_work_ranges(b, own_b, &of_b);

    if (a->is_dry || b->is_dry)
        return false;
    for (size_t i = 0; i < count_a; i++)
        for (size_t k = 0; k < count_b; k++)
            if ((of_a[i].writes || of_b[k].writes) &&
                sim_overlap(of_a[i].addr, of_a[i].bytes, of_b[k].addr, of_b[k].bytes)) {
                *addr = of_a[i].addr > of_b[k].addr ? of_a[i].addr : of_b[k].addr;
                return true;
            }
    return false;
}

void sim_work_share(const sim_work_t *work)
{
    if (work->compute != NULL)
        work->compute->owners++;
    if (work->cost != NULL)
        work->cost->owners++;
}

void sim_work_unshare(const sim_work_t *work)
{
    sim_compute_drop(work->compute);
    sim_cost_drop(work->cost);
}

void sim_work_discard(const sim_work_t *work)
{
    free(work->staging);
    sim_work_unshare(work);
}

uint64_t sim_checksum(const void *bytes, size_t count)
{
    const unsigned char *place = bytes;
    uint64_t sum = 1, word; // never 0, which means none

    for (; count >= sizeof word; count -= sizeof word, place += sizeof word) {
        memcpy(&word, place, sizeof word);
        sum = sum * 31 + word;
    }
    for (; count > 0; count--)
        sum = sum * 31 + *place++;
    return sum | 1;
}
