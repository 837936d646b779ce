/* counter.h - counting. The statistics themselves are in oomph/stats.h. */
#pragma once
#include "core/base/util.h"

// A counter and its peak. It is kept as what it lacks to the peak: counting is on the
// fast path, and this way it is a subtraction whose sign says whether the peak rises.
typedef struct oomph_level {
    int64_t peak, below;
} oomph_level_t;

static inline int64_t oomph_level_now(const oomph_level_t *level)
{
    return level->peak - level->below;
}

static inline void oomph_level_up(oomph_level_t *level, int64_t amount)
{
    level->below -= amount;
    if (__builtin_expect(level->below < 0, false)) {
        level->peak -= level->below;
        level->below = 0;
    }
}

// One counter, kept apart for small and for large blocks. What was freed follows from
// the rest.
typedef struct oomph_counter {
    struct {
        int64_t allocated; // since the last reset
        int64_t start;     // the level at the last reset
        oomph_level_t level;
    } kind[2]; // [small]
    // The sum of both kinds, with its peak for two readers that each start over:
    // PyTorch, which resets it, and oomph_tier_usage_t, which takes it.
    oomph_level_t sum;         // its peak is that since the later of reset and take
    int64_t peak_before_take;  // from the reset to the last take
    int64_t peak_before_reset; // from the last take to the reset
} oomph_counter_t;

static inline int64_t oomph_counter_current(const oomph_counter_t *counter)
{
    return oomph_level_now(&counter->sum);
}

static inline int64_t oomph_counter_allocated(const oomph_counter_t *counter)
{
    return counter->kind[0].allocated + counter->kind[1].allocated;
}

static inline void oomph_counter_up(oomph_counter_t *counter, bool small,
                                    int64_t amount)
{
    counter->kind[small].allocated += amount;
    oomph_level_up(&counter->kind[small].level, amount);
    oomph_level_up(&counter->sum, amount);
}

static inline void oomph_counter_down(oomph_counter_t *counter, bool small,
                                      int64_t amount)
{
    counter->kind[small].level.below += amount;
    counter->sum.below += amount;
}

// Bytes of blocks by tier, with high-water marks since the last take. The fast path
// counts only the sum; as long as nothing changes on the host, the device's high-water
// mark follows from that of the sum.
typedef struct oomph_tier_usage {
    int64_t host, host_high;
    int64_t high, device_high; // of both sides and of the device, at the last change
} oomph_tier_usage_t;

// Adds bytes to the host, or takes them away if they are negative. `sum` counts both
// tiers, without the block that is about to be counted or was just freed. Nobody else
// takes its peak.
void oomph_tier_usage_move(oomph_tier_usage_t *usage, oomph_counter_t *sum,
                           int64_t bytes);
// Gives the high-water marks and starts over.
oomph_tier_usage_t oomph_tier_usage_take(oomph_tier_usage_t *usage,
                                         oomph_counter_t *sum);

// The counter as PyTorch reports it.
void oomph_counter_report(const oomph_counter_t *counter, oomph_stats_by_kind_t stats);
void oomph_counter_reset_peak(oomph_counter_t *counter);
void oomph_counter_reset_accumulated(oomph_counter_t *counter);
