#include "stats.h"

static int64_t highest(const oomph_tally_t *tally)
{
    return tally->peak > tally->earlier_peak ? tally->peak : tally->earlier_peak;
}

void oomph_tally_tell(const oomph_tally_t *tally, oomph_stats_by_kind_t stats)
{
    oomph_stat_t *all = &stats[OOMPH_STAT_ALL];

    *all = (oomph_stat_t){.peak = highest(tally)};
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
    tally->peak = tally->earlier_peak = oomph_tally_current(tally);
}

int64_t oomph_tally_tide(oomph_tally_t *tally)
{
    int64_t high = tally->peak;

    tally->earlier_peak = highest(tally);
    tally->peak = oomph_tally_current(tally);
    return high;
}

void oomph_tally_reset_accumulated(oomph_tally_t *tally)
{
    for (int small = 0; small < 2; small++) {
        tally->kind[small].allocated = 0;
        tally->kind[small].start = tally->kind[small].current;
    }
}
