/* stats.h - counting. The figures themselves are in oomph.h. */
#pragma once
#include "util.h"

static inline void oomph_stat_up(oomph_stat_t *stat, int64_t amount)
{
    stat->current += amount;
    stat->allocated += amount;
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

static inline void oomph_stat_down(oomph_stat_t *stat, int64_t amount)
{
    stat->current -= amount;
    stat->freed += amount;
}

static inline void oomph_stats_up(oomph_stats_by_kind_t stats, bool small,
                                  int64_t amount)
{
    oomph_stat_up(&stats[OOMPH_STAT_ALL], amount);
    oomph_stat_up(&stats[small ? OOMPH_STAT_SMALL : OOMPH_STAT_LARGE], amount);
}

static inline void oomph_stats_down(oomph_stats_by_kind_t stats, bool small,
                                    int64_t amount)
{
    oomph_stat_down(&stats[OOMPH_STAT_ALL], amount);
    oomph_stat_down(&stats[small ? OOMPH_STAT_SMALL : OOMPH_STAT_LARGE], amount);
}
