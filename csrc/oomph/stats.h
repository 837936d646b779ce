/* stats.h - statistics. */
#pragma once
#include "oomph/types.h"

#include <stddef.h>
#include <stdint.h>

typedef struct oomph_stat {
    int64_t current, peak, allocated, freed;
} oomph_stat_t;

enum { OOMPH_STAT_ALL, OOMPH_STAT_SMALL, OOMPH_STAT_LARGE, OOMPH_STAT_KINDS };
typedef oomph_stat_t oomph_stats_by_kind_t[OOMPH_STAT_KINDS];

enum {
    OOMPH_RUNG_DEFERRED,  // deferred frees that have finished
    OOMPH_RUNG_GROW,      // spare and new pages
    OOMPH_RUNG_STEAL,     // free pages of other holes and streams
    OOMPH_RUNG_WAIT,      // the same, after waiting for their streams
    OOMPH_RUNG_CALLBACKS, // PyTorch's free-memory callbacks, the driver's own pool
    OOMPH_RUNG_GARBAGE,   // what Python has not collected yet
    OOMPH_RUNG_ROOM,      // what Python sends away to make room
    OOMPH_RUNG_HOST,      // host memory
    OOMPH_RUNG_ERROR,     // none helped
    OOMPH_RUNGS
};

enum { OOMPH_STEPS_KEPT = 100 }; // steps whose rescues are kept one by one

typedef struct oomph_stats {
    // PyTorch's own counters; memory_stats() names and defines them.
    oomph_stats_by_kind_t allocation, segment, active, inactive_split;
    oomph_stats_by_kind_t allocated_bytes, reserved_bytes, active_bytes;
    oomph_stats_by_kind_t inactive_split_bytes, requested_bytes;
    int64_t retry_count, oom_count, device_alloc_count, device_free_count;
    int64_t sync_count;

    // By tier: bytes of physical pages that oomph holds, mapped or spare.
    int64_t tier_bytes[OOMPH_TIERS], tier_peak_bytes[OOMPH_TIERS];
    int64_t host_limit_bytes;   // the cap on host bytes of all devices together
    int64_t device_limit_bytes; // the most device bytes; 0: the whole card
    int64_t rescues;            // blocks that fell back to the host
    int64_t rescued_bytes;      // their bytes on the host
    int64_t predicted_count;    // blocks put on the host as in the step before
    int64_t predicted_bytes;    // their bytes on the host
    int64_t host_block_bytes;   // bytes of blocks in use that live on host pages
    // What kernels could use there: bytes of the blocks that came to the host for
    // whatever reason, once each, and of those that stayed, once for each whole step.
    // Without buffers, and what was worked on in copies (oomph_mark_copied). What a
    // graph has captured counts in each step.
    int64_t host_used_bytes;
    int64_t buffer_bytes;       // bytes of buffers (oomph_buffer) in use
    int64_t promoted_bytes;     // of blocks in use that moved to the device
    int64_t evicted_bytes;      // of blocks in use that moved to the host
    int64_t swap_drains;        // times that the device was waited for to move blocks
    int64_t swap_ns;            // time that moving took, waiting included
    int64_t swap_failures;      // moves at the end of a step that the driver refused
    int64_t driver_ns;          // time spent in driver calls and in waiting for the GPU
    int64_t oom_missing_bytes;  // that were missing when nothing helped last
    int64_t garbage_bytes;      // of blocks that were freed since they were garbage
    int64_t rungs[OOMPH_RUNGS]; // how often each rung of the ladder was climbed
    int64_t pages_remapped;     // free pages that moved to another address
    int64_t pages_stolen;       // of these, to another stream
    int64_t page_bytes;         // size of a physical page
    int64_t step_count;         // steps that ended
    int64_t step_remapped_bytes;          // bytes remapped in the last step that ended
    int64_t step_host_used_bytes;         // host_used_bytes of the last step that ended
    int64_t step_active_bytes_peak;       // active_bytes at their most in that step
    int64_t step_rescues;                 // rescues in the last step that ended
    int64_t rescues_of[OOMPH_STEPS_KEPT]; // of the n-th step, from 0, at n % KEPT
    int64_t layout_hits;                  // allocations that took their planned place
    int64_t layout_misses;                // allocations for which a layout had no place
    int64_t layout_bytes;                 // address space of the layouts in force
    int64_t link_to_host_bytes_per_s, link_to_device_bytes_per_s; // 0: not measured
    int64_t guard_blocks;         // blocks that guard unmapped when they were freed
    int64_t guard_rounding_bytes; // that guarded blocks in use take beyond their need
    int64_t guard_space_bytes;    // address space kept from being used again
    int64_t guard_reused_bytes;   // of this, used again since none was left
    int64_t foreign_bytes;        // memory that pools have from a source of their own
    int64_t record_bytes;         // host memory of oomph's own records
    oomph_host_kind_t host_kind;  // what works here; OOMPH_HOST_AUTO: not yet tried
} oomph_stats_t;

// What a graph or a MemPool has reserved.
typedef struct oomph_pool_stats {
    oomph_pool_id_t pool;
    oomph_stats_by_kind_t reserved_bytes;
} oomph_pool_stats_t;

// These never fail; a device that was never used has zeros, except for limits.
oomph_status_t oomph_get_stats(int device, oomph_stats_t *stats);
// Of each pool but the default one: at most `capacity` of them; `count` is how many
// there are. A pool that was released stays until its memory is gone. Never fails.
oomph_status_t oomph_get_pool_stats(int device, oomph_pool_stats_t *rows,
                                    size_t capacity, size_t *count);
oomph_status_t oomph_reset_peak_stats(int device);
oomph_status_t oomph_reset_accumulated_stats(int device);
