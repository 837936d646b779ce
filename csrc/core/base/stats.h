/* stats.h - counting. The figures themselves are in oomph.h. */
#pragma once
#include "core/base/util.h"

// One figure, counted apart for small and for large blocks. What was freed follows from
// the rest, and so does the sum of both, except its peak: counting is on the fast path.
typedef struct oomph_tally {
    struct {
        int64_t current, peak;
        int64_t allocated; // since the last reset
        int64_t start;     // current at the last reset
    } kind[2];             // [small]
    // Peaks of the sum of both kinds. There are two readers, each of which starts anew:
    // the tide, and who resets the peak.
    int64_t peak;              // since the later of both
    int64_t peak_before_tide;  // since the reset, up to the last tide
    int64_t peak_before_reset; // since the last tide, up to the reset
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

// How bytes of blocks are split between device and host. What is on the device changes
// on the fast path, what is on host elsewhere: so the most on the device is that of the
// sum, as long as nothing changes on host. The highest are since the last turn.
typedef struct oomph_split {
    int64_t host, host_high;
    int64_t high, device_high; // of both sides and of the device, at the last change
} oomph_split_t;

// So many bytes come to the host, or leave it where they are less than 0. `sum` counts
// both sides, not yet what is new and no more what is freed; its tide is read here
// alone.
void oomph_split_move(oomph_split_t *split, oomph_tally_t *sum, int64_t bytes);
// The highest since the last call, which start anew.
oomph_split_t oomph_split_turn(oomph_split_t *split, oomph_tally_t *sum);

// The figure as it is told.
void oomph_tally_tell(const oomph_tally_t *tally, oomph_stats_by_kind_t stats);
// The peak of the sum since the last call.
int64_t oomph_tally_tide(oomph_tally_t *tally);
void oomph_tally_reset_peak(oomph_tally_t *tally);
void oomph_tally_reset_accumulated(oomph_tally_t *tally);
