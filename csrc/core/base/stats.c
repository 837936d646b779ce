#include "core/base/stats.h"

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void oomph_tally_tell(const oomph_tally_t *tally, oomph_stats_by_kind_t stats)
{
    oomph_stat_t *all = &stats[OOMPH_STAT_ALL];

    *all = (oomph_stat_t){.peak = larger(tally->peak, tally->peak_before_tide)};
    for (int small = 0; small < 2; small++) {
        oomph_stat_t *stat = &stats[small ? OOMPH_STAT_SMALL : OOMPH_STAT_LARGE];
        stat->current = tally->kind[small].current;
        stat->peak = tally->kind[small].peak;
        stat->allocated = tally->kind[small].allocated;
        stat->freed = stat->allocated - (stat->current - tally->kind[small].start);
        all->current += stat->current;
        all->allocated += stat->allocated;
        all->freed += stat->freed;
    }
}

void oomph_tally_reset_peak(oomph_tally_t *tally)
{
    for (int small = 0; small < 2; small++)
        tally->kind[small].peak = tally->kind[small].current;
    tally->peak_before_reset = larger(tally->peak_before_reset, tally->peak);
    tally->peak_before_tide = 0;
    tally->peak = oomph_tally_current(tally);
}

int64_t oomph_tally_tide(oomph_tally_t *tally)
{
    int64_t high = larger(tally->peak, tally->peak_before_reset);

    tally->peak_before_tide = larger(tally->peak_before_tide, tally->peak);
    tally->peak_before_reset = 0;
    tally->peak = oomph_tally_current(tally);
    return high;
}

void oomph_split_move(oomph_split_t *split, oomph_tally_t *sum, int64_t bytes)
{
    int64_t high = oomph_tally_tide(sum);

    split->high = larger(split->high, high);
    split->device_high = larger(split->device_high, high - split->host);
    split->host += bytes;
    split->host_high = larger(split->host_high, split->host);
}

oomph_split_t oomph_split_turn(oomph_split_t *split, oomph_tally_t *sum)
{
    int64_t now = oomph_tally_current(sum);

    oomph_split_move(split, sum, 0);
    oomph_split_t turned = *split;
    *split = (oomph_split_t){.host = split->host,
                             .host_high = split->host,
                             .high = now,
                             .device_high = now - split->host};
    return turned;
}

void oomph_tally_reset_accumulated(oomph_tally_t *tally)
{
    for (int small = 0; small < 2; small++) {
        tally->kind[small].allocated = 0;
        tally->kind[small].start = tally->kind[small].current;
    }
}
