/* device.h - the state of one device. Everything but the free queue is guarded by its
 * lock (sync.h).
 */
#pragma once
#include "core/base/counter.h"
#include "core/base/lock.h"
#include "core/base/site.h"
#include "core/device/pool.h"
#include "core/heap/table.h"
#include "core/layout/predict_host.h"
#include "core/memory/alias.h"
#include "core/memory/spill.h"
#include "core/memory/swap.h"
#include "core/stream/deferred.h"

#include <pthread.h>

// Frees of threads that found the lock taken; whoever enters next (free.h) processes
// them.
enum { OOMPH_FREE_QUEUE = 4096 };
typedef struct oomph_free_queue {
    _Atomic(oomph_addr_t) addr[OOMPH_FREE_QUEUE]; // 0: not written yet
    _Atomic(uint32_t) head;                       // next to take
    _Atomic(uint32_t) tail; // the oldest not read; written under the lock
} oomph_free_queue_t;

static inline bool oomph_queue_is_empty(const oomph_free_queue_t *queue)
{
    return atomic_load_explicit(&queue->head, memory_order_acquire) ==
           atomic_load_explicit(&queue->tail, memory_order_relaxed);
}

// Reserved address space that was used up: a range in quarantine.
typedef struct oomph_range {
    struct oomph_range *next;
    oomph_addr_t addr;
    size_t bytes;
} oomph_range_t;

// The state of guard.
typedef struct oomph_guarded {
    oomph_unmapped_t *ring; // OOMPH_UNMAPPED_KEPT; NULL: no block was guarded yet
    uint64_t unmapped;      // blocks so far: the next goes to unmapped % KEPT
    size_t rounding_bytes, space_bytes, reused_bytes; // see oomph_stats_t
    oomph_range_t *oldest, *newest;                   // oldest first
} oomph_guarded_t;

// PyTorch's counters, of blocks.
typedef struct oomph_counters {
    oomph_counter_t allocation, active;
    oomph_counter_t allocated_bytes, active_bytes, requested_bytes;
} oomph_counters_t;

// What some steps needed.
typedef struct oomph_needs {
    int64_t growth;       // the most bytes that one had in use beyond its base
    size_t largest_bytes; // of a block that was asked for
    bool was_short;       // not all had room on the device
} oomph_needs_t;

// What steps need, as captures want to know it (capture.c); bytes of blocks in use.
typedef struct oomph_demand {
    int64_t base;          // at the step's beginning, or when its first capture began
    bool base_is_known;    // not of the first step
    bool base_is_begin;    // of a capture in this step
    oomph_needs_t recent;  // of the last steps, up to 16,
    oomph_needs_t earlier; // and of the 16 before them
    size_t workspace_peak; // the most that a stream had of libraries' workspaces
    bool captured;         // room was looked for before a capture,
    int64_t captured_step; // the last time in this step
} oomph_demand_t;

// What of the host's memory steps need: the rest is idle, and goes back.
enum { OOMPH_HOST_STEPS = 64 };
typedef struct oomph_host_need {
    oomph_level_t live;                // bytes whose memory may not be used again yet
    int64_t most_of[OOMPH_HOST_STEPS]; // of these, in the last steps
    size_t held_bytes;                 // when the last step ended, in use or not
    int64_t steps;                     // that are looked at; 0: no step has ended
    int64_t returned_step;             // in which some was returned last; 0: none was
} oomph_host_need_t;

struct oomph_device {
    oomph_lock_t lock;
    bool waiting; // a thread waits for the GPU without the lock
    // How many such waits have ended; guarded by a lock of its own, with a condition.
    uint64_t waits;
    pthread_mutex_t waits_lock;
    pthread_cond_t waited;
    int ordinal;
    bool under_pressure;   // memory is short: frees are stamped with their epoch
    bool needs_reserve;    // an error would have come without it
    int64_t pressure_step; // the step in which memory was short last
    bool shares_memory;    // with the host: it has none of its own
    size_t total_bytes;
    double fraction;
    oomph_slab_t slab;
    oomph_map_t table; // of the blocks in use (table.h)
    oomph_pages_t pages;
    oomph_streams_t streams;
    oomph_deferred_t deferred;
    unsigned deferred_tick;
    int64_t ask_again_at; // allocations made when the callbacks are asked again
    oomph_pool_t *pools;
    oomph_group_t *groups;
    struct oomph_import *imports; // ipc.c
    oomph_ahead_t ahead;
    oomph_host_prediction_t host_prediction;
    oomph_stats_t stats; // what is counted here; oomph_get_stats() adds the rest
    oomph_counters_t counters;
    oomph_site_counters_t sites;
    oomph_tier_usage_t
        active_usage; // of counters.active_bytes; taken at the end of each step
    oomph_tier_usage_t
        allocated_usage; // of counters.allocated_bytes; taken when it is read
    oomph_demand_t demand;
    int64_t step_start_remapped, step_start_rescues, step_start_host_used;
    int64_t captured_host_bytes; // of graphs, when the last step ended
    uint64_t step_epoch;         // of the last frees before this step; 0: none is known
    int64_t step_buffers;        // taken since the step began, and blocks predicted
    oomph_host_need_t host_need;
    int64_t promoted_step; // the last step at whose end blocks were promoted; 0: none
    pthread_t stepper;     // the thread that ended the first step
    bool has_steppers;     // others ended steps, too
    bool promotes_not; // promotion was in vain: none until memory is no longer short
    oomph_guarded_t guard;
    oomph_aliases_t aliases;
    oomph_free_queue_t queue;
};

// Opens the device if need be. Errors: OOMPH_ERR_INVALID (no such device),
// OOMPH_ERR_STATE, OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY.
oomph_status_t oomph_device_open(int ordinal, oomph_device_t **device);
// The same; nearly always it is open.
static inline oomph_status_t oomph_device_get(int ordinal, oomph_device_t **device)
{
    *device = oomph_device_peek(ordinal);
    return *device != NULL ? OOMPH_OK : oomph_device_open(ordinal, device);
}

// The pool that serves a request of `bytes` (rounded). Errors: as oomph_pool_find(),
// which it nearly always does without: a program mostly stays on a stream.
static inline oomph_status_t oomph_pool_get(oomph_device_t *device,
                                            const oomph_request_t *request,
                                            size_t bytes, oomph_pool_t **pool)
{
    const oomph_streams_t *streams = &device->streams;
    const oomph_stream_state_t *last = streams->last;

    if (last != NULL && last->handle == request->stream && !streams->beginning &&
        oomph_is_default_pool(request->pool)) {
        *pool = last->pools[bytes <= OOMPH_SMALL_MAX];
        if (*pool != NULL)
            return OOMPH_OK;
    }
    return oomph_pool_find(device, request, bytes, pool);
}

// Whether blocks may fall back to the host, as far as the settings say.
bool oomph_device_offloads(const oomph_device_t *device);
// Sets the page limit from the settings and the fraction.
void oomph_device_limit(oomph_device_t *device);
// The kind of host memory that works, found by trying, once there is one.
oomph_host_kind_t oomph_device_host_kind(oomph_device_t *device);
// Bytes that blocks can have on the device within its limits, those in use included.
size_t oomph_device_room(oomph_device_t *device);
