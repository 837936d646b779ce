/* device.h - the state of one device, shared by the files of the top layer. Everything
 * but the free queue is guarded by the lock.
 */
#pragma once
#include "deferred.h"
#include "foresee.h"
#include "lock.h"
#include "plan.h"
#include "site.h"
#include "spill.h"
#include "stats.h"
#include "swap.h"
#include "table.h"

#include <pthread.h>

typedef struct oomph_device oomph_device_t;

// What PyTorch calls a pool: the memory of a graph capture or of a MemPool. The default
// pool {0, 0} has no group.
typedef struct oomph_group {
    struct oomph_group *next;
    oomph_pool_id_t id;
    int use_count;
    unsigned flags;   // oomph_pool_flag_t
    bool is_mem_pool; // not of a graph, or not of one alone
    bool has_source;
    size_t largest_bytes; // of a block that was asked for
    oomph_source_t source;
} oomph_group_t;

// The blocks of one stream, group and size class.
typedef struct oomph_pool {
    struct oomph_pool *next;
    oomph_device_t *device;
    oomph_stream_state_t *stream;
    oomph_group_t *group; // NULL: the default pool
    bool small;
    size_t claims;  // of threads that go on with it after they gave up the lock
    uint64_t floor; // what was freed before counts as freed in this epoch
    oomph_heap_t heap;
    // Large blocks of the default pool only:
    oomph_plan_t plan;
    oomph_heap_t arena; // the address space of the plan in force: one segment, or none
    uint32_t conflicts; // planned places found taken, since the step began
} oomph_pool_t;

// Frees of threads that found the lock taken; whoever holds it next processes them.
enum { OOMPH_FREE_QUEUE = 4096 };
typedef struct oomph_free_queue {
    _Atomic(oomph_addr_t) addr[OOMPH_FREE_QUEUE]; // 0: not written yet
    _Atomic(uint32_t) head;                       // next to take
    _Atomic(uint32_t) tail; // the oldest not read; written under the lock
} oomph_free_queue_t;

// Pages of another process, mapped here.
typedef struct oomph_import {
    struct oomph_import *next;
    oomph_addr_t addr;
    size_t bytes;
    bool dropped; // to be unmapped when it may be waited for the device
} oomph_import_t;

// Address space that is reserved and was used up.
typedef struct oomph_range {
    struct oomph_range *next;
    oomph_addr_t addr;
    size_t bytes;
} oomph_range_t;

// What guard knows.
typedef struct oomph_guarded {
    oomph_unmapped_t *ring; // OOMPH_UNMAPPED_KEPT; NULL: no block was guarded yet
    uint64_t unmapped;      // blocks so far: the next goes to unmapped % KEPT
    size_t rounding_bytes, space_bytes, reused_bytes; // see oomph_stats_t
    oomph_range_t *spent, *newest;                    // oldest first
} oomph_guarded_t;

// PyTorch's figures, of blocks.
typedef struct oomph_tallies {
    oomph_tally_t allocation, active;
    oomph_tally_t allocated_bytes, active_bytes, requested_bytes;
} oomph_tallies_t;

// What some steps needed.
typedef struct oomph_needs {
    int64_t growth; // the most bytes that one had in use beyond its base
    bool was_short; // not all had room on the device
} oomph_needs_t;

// What steps need, as captures want to know it (room.c); bytes of blocks in use.
typedef struct oomph_demand {
    int64_t base;          // at the step's beginning, or when its first capture began
    bool base_is_known;    // not of the first step
    bool base_is_begin;    // of a capture in this step
    oomph_needs_t recent;  // of the steps since the last turn,
    oomph_needs_t earlier; // and of those since the turn before
    size_t largest_bytes;  // of a block that was asked for
    size_t workspace_peak; // the most that a stream had of libraries' workspaces
    bool captured;         // room was looked for before a capture,
    int64_t captured_step; // the last time in this step
} oomph_demand_t;

struct oomph_device {
    oomph_lock_t lock;
    bool climbing; // a thread waits for the GPU without the lock
    // How often that has ended; guarded by a lock of its own, to be waited for.
    uint64_t climbs;
    pthread_mutex_t climbs_lock;
    pthread_cond_t climbed;
    int ordinal;
    bool pressed;         // memory is short: frees are stamped with their epoch
    int64_t pressed_step; // the step in which memory was short last
    size_t total_bytes;
    double fraction;
    oomph_slab_t slab;
    oomph_table_t table;
    oomph_pages_t pages;
    oomph_streams_t streams;
    oomph_deferred_t deferred;
    unsigned deferred_tick;
    int64_t ask_again_at; // allocations made when the callbacks are asked again
    oomph_pool_t *pools;
    oomph_group_t *groups;
    oomph_import_t *imports;
    oomph_ahead_t ahead;
    oomph_foresight_t foresight;
    oomph_stats_t stats; // what is counted there; the rest is told from elsewhere
    oomph_tallies_t tallies;
    oomph_site_tallies_t sites;
    oomph_split_t split; // of tallies.active_bytes; turns with the step
    oomph_split_t tide;  // of tallies.allocated_bytes; turns when it is read
    oomph_demand_t demand;
    int64_t step_start_remapped, step_start_rescues;
    int64_t step_buffers;  // taken since the step began, and blocks foreseen
    int64_t promoted_step; // the last step at whose end blocks were promoted; 0: none
    pthread_t stepper;     // the thread that ended the first step
    bool has_steppers;     // others ended steps, too
    bool promotes_not;     // that was in vain, until memory is no longer short
    oomph_guarded_t guard;
    oomph_free_queue_t queue;
};

// What the process was configured to do; fixed by the first oomph_start().
typedef struct oomph_process {
    const oomph_driver_t *driver;
    oomph_config_t config;
    oomph_hooks_t hooks;
    atomic_bool watched;     // somebody wants to hear of notices and of unmapping
    atomic_int offload_bans; // regions in which nothing is offloaded, now open
    _Atomic(int64_t) garbage_again_ns; // garbage is not looked for before
    oomph_budget_t host;
    int device_count;
    double fractions[OOMPH_DEVICE_MAX]; // of each card, open or not, that may be taken
    bool started;
    _Atomic(oomph_device_t *) devices[OOMPH_DEVICE_MAX];
} oomph_process_t;

extern oomph_process_t oomph_process;

/* ---- device.c */

// The device, opened if need be. Errors: OOMPH_ERR_INVALID (no such device),
// OOMPH_ERR_STATE, OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY.
oomph_status_t oomph_device_get(int ordinal, oomph_device_t **device);
// The device if it is open and this is no forked child, else NULL.
oomph_device_t *oomph_device_peek(int ordinal);
// The error for an address of no open device.
oomph_status_t oomph_not_ours(oomph_addr_t addr);
// Sets the page limit from the settings and the fraction.
void oomph_device_limit(oomph_device_t *device);

// The kind of host memory that works, found by trying, once there is one.
oomph_host_kind_t oomph_device_host_kind(oomph_device_t *device);

/* ---- pool.c */

oomph_group_t *oomph_group_find(const oomph_device_t *device, oomph_pool_id_t id);
// The pool that serves a request of `bytes` (rounded). Errors as above.
oomph_status_t oomph_pool_get(oomph_device_t *device, const oomph_request_t *request,
                              size_t bytes, oomph_pool_t **pool);
// Whether free pages of the pool may move elsewhere: not those of a graph or MemPool.
bool oomph_pool_floats(const oomph_pool_t *pool);
// Address space for `bytes` more in the heap.
oomph_status_t oomph_pool_extend(oomph_pool_t *pool, size_t bytes);
// Replaces the arena by one for the plan in force, or by none.
void oomph_pool_replan(oomph_pool_t *pool);
// Drops segments that hold nothing, and pools of groups that are gone.
void oomph_pools_prune(oomph_device_t *device);

static inline oomph_pool_t *oomph_block_pool(const oomph_block_t *block)
{
    return block->segment->heap->owner;
}

/* ---- steal.c: free pages on their way from one hole to another */

// Which free pages are meant.
typedef struct oomph_reach {
    oomph_tier_t tier;
    const oomph_group_t *group; // only of this group; NULL: of all that may move
    const oomph_heap_t *heap;   // only of this heap; NULL: of all
    oomph_window_t keep;        // not of blocks that touch this window, if it has bytes
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

// Looks what has passed; gives the newest epoch that can be waited for.
uint64_t oomph_newest_epoch(oomph_device_t *device);
// Counts the free pages within reach.
oomph_survey_t oomph_steal_survey(oomph_device_t *device, const oomph_reach_t *reach);
// Unmaps up to `want` free pages whose work has finished; they become spare. Gives how
// many. May give up the lock for a while to announce what is unmapped. `thief` is the
// stream that wants them; NULL: the driver.
size_t oomph_steal(oomph_device_t *device, const oomph_reach_t *reach, size_t want,
                   const oomph_stream_state_t *thief);
// From now on frees are stamped; what was freed before counts as freed now.
void oomph_press(oomph_device_t *device);
// Stamps the pages of a block that is being freed.
void oomph_stamp(const oomph_block_t *block);

/* ---- free.c: the lock, waiting, deferred frees */

// Takes the lock and processes the frees that were queued.
void oomph_lock(oomph_device_t *device);
// The same for a device that may not be open yet. Errors: as oomph_device_get(); then
// nothing is locked.
oomph_status_t oomph_lock_device(int ordinal, oomph_device_t **device);
// Gives the lock up and tells what happened under it, if anybody wants to hear.
void oomph_unlock(oomph_device_t *device);
// Processes the frees that were queued since the lock was taken. True if there were
// any.
bool oomph_drain_queue(oomph_device_t *device);
// Waits for the clock's oldest epoch, or for all work of the device (NULL), giving up
// the lock meanwhile. False if there was nothing to wait for, or it must not be waited
// for.
bool oomph_wait_for(oomph_device_t *device, oomph_clock_t *clock);
// The same for the oldest epoch of the device: the free pages longest in use.
static inline bool oomph_wait_for_pages(oomph_device_t *device)
{
    return oomph_wait_for(device, &device->streams.clock);
}
// Waits until all that was queued on the device has finished. False if it must not be
// waited for, or the driver failed.
bool oomph_drain(oomph_device_t *device);
// Frees what was deferred and has finished. True if there was any.
bool oomph_collect(oomph_device_t *device);

// For what is slow and needs neither lock nor GIL: gives both up, and takes them again.
void *oomph_step_aside(oomph_device_t *device);
void oomph_step_back(oomph_device_t *device, void *state);

/* ---- host.c */

// Makes host pages until `count` are spare, or no more are to be had. That is slow, so
// the lock is given up. Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER; what was made by
// then is spare.
oomph_status_t oomph_make_host_pages(oomph_device_t *device, size_t count);

/* ---- trim.c: what is idle, on its way back to the driver */

// Counts the pages of page-locked blocks that nothing uses.
oomph_survey_t oomph_pinned_survey(oomph_device_t *device);
// Returns such blocks whose work has finished until `bytes` are; gives how many were.
size_t oomph_return_pinned(oomph_device_t *device, size_t bytes);
// Returns host memory of any kind likewise, and waits where that helps.
size_t oomph_return_host(oomph_device_t *device, size_t bytes);

/* ---- garbage.c */

// Whether this thread collects garbage, so that what it frees is counted.
bool oomph_collects(void);
void oomph_count_garbage(size_t bytes);

/* ---- guard.c: use after free, caught */

static inline bool oomph_guards(oomph_guard_t how)
{
    return (oomph_process.config.guard & how) != 0;
}

// The bytes of a block for a request of the pool, where guard is on.
size_t oomph_guard_bytes(const oomph_device_t *device, oomph_pool_id_t pool,
                         size_t bytes);
// Makes a block that was taken ready to be handed out: gives its uses, to be attached,
// or NULL if it has none. Errors: OOMPH_ERR_NO_MEMORY (host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_guard_admit(oomph_device_t *device, oomph_block_t *block,
                                 const oomph_request_t *request, oomph_uses_t **uses);
// What counts once it is handed out.
void oomph_guard_attach(oomph_device_t *device, oomph_block_t *block,
                        oomph_uses_t *uses);
// Unmaps the guarded ones of blocks that were freed and whose streams are done. Gives
// those that may be released; the others wait again. May give the lock up for a while.
oomph_uses_t *oomph_guard_unmap(oomph_device_t *device, oomph_uses_t *done);
// Fills a block that is being freed. Comes before its pages are stamped.
void oomph_guard_fill(const oomph_device_t *device, const oomph_block_t *block);
// What comes after a free in place of resting.
void oomph_guard_rest(oomph_device_t *device, oomph_block_t *block);
// Waits for the streams of the blocks that were freed. Gives the lock up meanwhile.
void oomph_guard_wait(oomph_device_t *device);
// Address space for `bytes` more in the pool: new, or else the oldest that was spent.
oomph_status_t oomph_guard_extend(oomph_pool_t *pool, size_t bytes, size_t generous);
// Takes over the address space of a segment that is used up; with `need`, also of one
// that has room left and holds nothing. False if it is none.
bool oomph_guard_keep(oomph_device_t *device, oomph_segment_t *segment, bool need);

/* ---- move.c */

// What is moved of the blocks that are named.
typedef struct oomph_move_limits {
    size_t most_bytes; // of pages: as many blocks, in their order, as fit
    bool calm;         // only pages that blocks that rest between steps have, or nobody
    bool wished;       // their user wants it: they do not return by themselves
} oomph_move_limits_t;

// The block in use that contains the address and is the program's, or NULL.
oomph_block_t *oomph_block_at(const oomph_device_t *device, oomph_addr_t addr);
// Whether it lies elsewhere, and nothing in the block itself keeps it there.
bool oomph_block_may_move(const oomph_block_t *block, oomph_tier_t tier);

// oomph_move() for the holder of the lock, who gives it up for a while.
oomph_status_t oomph_move_blocks(oomph_device_t *device, oomph_tier_t tier,
                                 oomph_move_t *moves, size_t count,
                                 oomph_move_limits_t limits, size_t *moved_bytes);

/* ---- promote.c */

// A step has ended, with so many bytes of blocks on the device at its peak: moves
// blocks that outlived a whole one on host and rest between steps to the device, if
// that has room for them at the peak of a step. Gives the lock up for a while.
void oomph_promote_survivors(oomph_device_t *device, int64_t device_peak);

/* ---- room.c */

// Makes room for a capture, if one is about to begin, with requests like this one, into
// the pool that it names and that is in use. Gives the lock up for a while.
void oomph_room_make(oomph_device_t *device, const oomph_request_t *request);
// A step has ended, with so many bytes of blocks in use at its peak.
void oomph_room_end_step(oomph_device_t *device, int64_t high);
// Of the device's room, the bytes that are not for blocks which return to it: a step
// needs them at its peak, captures will, or graphs keep them.
size_t oomph_room_kept(oomph_device_t *device, int64_t device_peak);

/* ---- share.c */

// Gives the devices in pages.devices access to what other processes' pages are mapped.
oomph_status_t oomph_imports_set_access(const oomph_device_t *device);
// Unmaps what was dropped, after waiting for the device; what cannot be unmapped now,
// the next time.
void oomph_imports_settle(oomph_device_t *device);

/* ---- inspect.c */

// The segment that contains `addr`, or NULL.
oomph_segment_t *oomph_device_segment(const oomph_device_t *device, oomph_addr_t addr);

void oomph_describe(const oomph_block_t *block, oomph_block_info_t *info);

// Shows every block of a device, whatever its state; under the device's lock.
typedef void (*oomph_each_t)(const oomph_block_t *block, void *context);
void oomph_device_each(const oomph_device_t *device, oomph_each_t each, void *context);

// Bytes that blocks can have on the device within its limits, those in use included.
size_t oomph_device_room(oomph_device_t *device);
