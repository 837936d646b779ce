/* counter.h - counting. The statistics themselves are in oomph.h. */
#pragma once
#include "core/base/util.h"

// One figure, counted apart for small and for large blocks. What was freed follows from
// the rest, and so does the sum of both, except its peak: counting is on the fast path.
typedef struct oomph_counter {
    struct {
        int64_t current, peak;
        int64_t allocated; // since the last reset
        int64_t start;     // current at the last reset
    } kind[2];             // [small]
    // Peaks of the sum of both kinds. There are two readers, each of which starts anew:
    // the tide, and who resets the peak.
    int64_t peak;              // since the later of both
    int64_t peak_before_take;  // since the reset, up to the last tide
    int64_t peak_before_reset; // since the last tide, up to the reset
} oomph_counter_t;

static inline int64_t oomph_counter_current(const oomph_counter_t *counter)
{
    return counter->kind[0].current + counter->kind[1].current;
}

static inline int64_t oomph_counter_allocated(const oomph_counter_t *counter)
{
    return counter->kind[0].allocated + counter->kind[1].allocated;
}

static inline void oomph_counter_up(oomph_counter_t *counter, bool small,
                                    int64_t amount)
{
    counter->kind[small].current += amount;
    counter->kind[small].allocated += amount;
    if (counter->kind[small].current > counter->kind[small].peak)
        counter->kind[small].peak = counter->kind[small].current;
    if (oomph_counter_current(counter) > counter->peak)
        counter->peak = oomph_counter_current(counter);
}

static inline void oomph_counter_down(oomph_counter_t *counter, bool small,
                                      int64_t amount)
{
    counter->kind[small].current -= amount;
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
void oomph_split_move(oomph_split_t *split, oomph_counter_t *sum, int64_t bytes);
// The highest since the last call, which start anew.
oomph_split_t oomph_split_turn(oomph_split_t *split, oomph_counter_t *sum);

// The figure as it is told.
void oomph_counter_report(const oomph_counter_t *counter, oomph_stats_by_kind_t stats);
// The peak of the sum since the last call.
int64_t oomph_counter_take_peak(oomph_counter_t *counter);
void oomph_counter_reset_peak(oomph_counter_t *counter);
void oomph_counter_reset_accumulated(oomph_counter_t *counter);
