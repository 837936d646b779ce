/* counter.c - a high-water mark for two readers: one mark since the later of their
 * resets, and for each the highest from before that.
 */
#include "core/base/counter.h"

static void reset(oomph_level_t *level)
{
    *level = (oomph_level_t){.peak = oomph_level_now(level)};
}

void oomph_counter_report(const oomph_counter_t *counter, oomph_stats_by_kind_t stats)
{
    oomph_stat_t *all = &stats[OOMPH_STAT_ALL];

    *all = (oomph_stat_t){
        .peak = oomph_larger(counter->sum.peak, counter->peak_before_take)};
    for (int small = 0; small < 2; small++) {
        oomph_stat_t *stat = &stats[small ? OOMPH_STAT_SMALL : OOMPH_STAT_LARGE];
        stat->current = oomph_level_now(&counter->kind[small].level);
        stat->peak = counter->kind[small].level.peak;
        stat->allocated = counter->kind[small].allocated;
        stat->freed = stat->allocated - (stat->current - counter->kind[small].start);
        all->current += stat->current;
        all->allocated += stat->allocated;
        all->freed += stat->freed;
    }
}

void oomph_counter_reset_peak(oomph_counter_t *counter)
{
    for (int small = 0; small < 2; small++)
        reset(&counter->kind[small].level);
    counter->peak_before_reset =
        oomph_larger(counter->peak_before_reset, counter->sum.peak);
    counter->peak_before_take = 0;
    reset(&counter->sum);
}

// The peak of the sum since the last call.
static int64_t take_peak(oomph_counter_t *counter)
{
    int64_t high = oomph_larger(counter->sum.peak, counter->peak_before_reset);

    counter->peak_before_take =
        oomph_larger(counter->peak_before_take, counter->sum.peak);
    counter->peak_before_reset = 0;
    reset(&counter->sum);
    return high;
}

void oomph_tier_usage_move(oomph_tier_usage_t *usage, oomph_counter_t *sum,
                           int64_t bytes)
{
    int64_t high = take_peak(sum);

    usage->high = oomph_larger(usage->high, high);
    usage->device_high = oomph_larger(usage->device_high, high - usage->host);
    usage->host += bytes;
    usage->host_high = oomph_larger(usage->host_high, usage->host);
}

oomph_tier_usage_t oomph_tier_usage_take(oomph_tier_usage_t *usage,
                                         oomph_counter_t *sum)
{
    int64_t now = oomph_counter_current(sum);

    oomph_tier_usage_move(usage, sum, 0);
    oomph_tier_usage_t taken = *usage;
    *usage = (oomph_tier_usage_t){.host = usage->host,
                                  .host_high = usage->host,
                                  .high = now,
                                  .device_high = now - usage->host};
    return taken;
}

void oomph_counter_reset_accumulated(oomph_counter_t *counter)
{
    for (int small = 0; small < 2; small++) {
        counter->kind[small].allocated = 0;
        counter->kind[small].start = oomph_level_now(&counter->kind[small].level);
    }
}
