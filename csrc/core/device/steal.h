/* steal.h - free pages on their way from one hole to another. */
#pragma once
#include "core/device/device.h"

// Which free pages are meant.
typedef struct oomph_reach {
    oomph_tier_t tier;
    const oomph_group_t *group; // only of this group; NULL: of all that may move
    const oomph_heap_t *heap;   // only of this heap; NULL: of all
    oomph_span_t keep;          // not of this span, if it has bytes
    uint64_t until;             // none is waited for that was freed later; 0: all are
} oomph_reach_t;

typedef struct oomph_survey {
    size_t now;   // pages whose work has finished
    size_t later; // pages whose work has not, and can be waited for
} oomph_survey_t;

// The epoch in which pages with this stamp count as freed.
static inline uint64_t oomph_epoch_of(const oomph_pool_t *pool, uint64_t stamp)
{
    return oomph_max(stamp, oomph_max(pool->floor, pool->device->streams.floor));
}

// Whether all work has finished that was queued before they were freed.
static inline bool oomph_has_passed(const oomph_pool_t *pool, uint64_t stamp)
{
    return oomph_epoch_of(pool, stamp) <= pool->device->streams.clock.passed;
}

// Looks which epochs have passed; gives the newest epoch that can be waited for.
uint64_t oomph_newest_epoch(oomph_device_t *device);
// Counts the free pages within reach.
oomph_survey_t oomph_steal_survey(oomph_device_t *device, const oomph_reach_t *reach);
// Unmaps up to `want` free pages whose work has finished; they become spare. Gives how
// many. May give up the lock for a while to announce what is unmapped. `thief` is the
// stream that wants them; NULL: the driver.
size_t oomph_steal(oomph_device_t *device, const oomph_reach_t *reach, size_t want,
                   const oomph_stream_state_t *thief);
// From now on frees are stamped; what was freed before counts as freed now.
void oomph_note_pressure(oomph_device_t *device);
// Stamps the pages of a block that is being freed.
void oomph_stamp(const oomph_block_t *block);
