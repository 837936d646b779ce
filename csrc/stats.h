/* stats.h - counting. The figures themselves are in oomph.h. */
#pragma once
#include "util.h"

// One figure, counted apart for small and for large blocks. What was freed follows from
// the rest, and so does the sum of both, except its peak: counting is on the fast path.
typedef struct oomph_tally {
    struct {
        int64_t current, peak;
        int64_t allocated; // since the last reset
        int64_t start;     // current at the last reset
    } kind[2];             // [small]
    int64_t peak;          // of the sum, since the tide was read
    int64_t earlier_peak;  // of the sum, before that
} oomph_tally_t;

static inline int64_t oomph_tally_current(const oomph_tally_t *tally)
{
    return tally->kind[0].current + tally->kind[1].current;
}

static inline int64_t oomph_tally_allocated(const oomph_tally_t *tally)
{
    return tally->kind[0].allocated + tally->kind[1].allocated;
}

static inline void oomph_tally_up(oomph_tally_t *tally, bool small, int64_t amount)
{
    tally->kind[small].current += amount;
    tally->kind[small].allocated += amount;
    if (tally->kind[small].current > tally->kind[small].peak)
        tally->kind[small].peak = tally->kind[small].current;
    if (oomph_tally_current(tally) > tally->peak)
        tally->peak = oomph_tally_current(tally);
}

static inline void oomph_tally_down(oomph_tally_t *tally, bool small, int64_t amount)
{
    tally->kind[small].current -= amount;
}

// The figure as it is told.
void oomph_tally_tell(const oomph_tally_t *tally, oomph_stats_by_kind_t stats);
// The peak of the sum since the last call.
int64_t oomph_tally_tide(oomph_tally_t *tally);
void oomph_tally_reset_peak(oomph_tally_t *tally);
void oomph_tally_reset_accumulated(oomph_tally_t *tally);
