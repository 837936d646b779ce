/* oomph.h - the public C API. Everything else in csrc/ is private.
 *
 * Sizes are bytes, addresses are device virtual addresses, times are nanoseconds.
 * Every function that can fail returns an oomph_status_t and writes its result
 * through its last parameter; on failure the result is untouched, the allocator is
 * unchanged and oomph_error_detail() says what happened. All functions are
 * thread-safe. None takes the Python GIL, prints, reads the environment or exits.
 * After a fork the child's calls fail with OOMPH_ERR_STATE and change nothing.
 *
 * A call that needs a device opens it, which may fail: OOMPH_ERR_INVALID (no such
 * device, or settings that it cannot have), OOMPH_ERR_STATE (a forked child),
 * OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY (host memory). These are "of opening" below.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OOMPH_ABI = 3, OOMPH_DEVICE_MAX = 64 };

typedef enum oomph_status {
    OOMPH_OK = 0,
    OOMPH_ERR_INVALID,   // an argument is wrong; a bug in the caller
    OOMPH_ERR_NO_MEMORY, // memory is exhausted, after every rung of the ladder
    OOMPH_ERR_DRIVER,    // CUDA failed; oomph_error_detail() has its message
    OOMPH_ERR_STATE,     // not started, already started, or after a fork
} oomph_status_t;

typedef uint64_t oomph_addr_t;
typedef struct CUstream_st *oomph_stream_t; // a CUstream, never dereferenced here
typedef struct oomph_event *oomph_event_t;  // a CUevent, likewise

// The pool that PyTorch names for a graph capture or a MemPool; {0, 0} is the default.
typedef struct oomph_pool_id {
    uint64_t first, second;
} oomph_pool_id_t;

// A line of source that allocates, numbered; 0: unknown. OOMPH_SITE_INFERRED marks a
// line that did not allocate itself: its backward did.
typedef uint32_t oomph_site_t;
#define OOMPH_SITE_INFERRED ((oomph_site_t)1 << 31)

// Text of the last failure of this thread; never NULL, valid until its next failure.
const char *oomph_error_detail(void);

/* ---- Settings and start */

typedef enum oomph_offload {
    OOMPH_OFFLOAD_OFF,    // a failed allocation is an error
    OOMPH_OFFLOAD_ON_OOM, // a block that finds no device page falls back to the host
    OOMPH_OFFLOAD_ALWAYS, // likewise; who plans ahead of need does so from the start
} oomph_offload_t;

// Which kind of host memory backs a block that falls back to the host.
typedef enum oomph_host_kind {
    OOMPH_HOST_AUTO,   // the first of the kinds below that works on this machine
    OOMPH_HOST_NUMA,   // pages on the GPU's NUMA node, mapped into a segment
    OOMPH_HOST_PLAIN,  // host pages without a node, mapped into a segment (CUDA 13)
    OOMPH_HOST_PINNED, // page-locked allocations, each with its own address
    OOMPH_HOST_OFF,    // none works, or none is wanted
} oomph_host_kind_t;

enum { OOMPH_AUTO = -1 };

// What is done so that a use of memory that was freed, or never written, is seen; may
// be combined. Blocks of CUDA graphs and MemPools are left alone.
typedef enum oomph_guard {
    OOMPH_GUARD_OFF = 0,
    OOMPH_GUARD_UNMAP = 1, // a block's pages are its own, unmapped once it is freed and
                           // its streams are done, at an address not used again
    OOMPH_GUARD_SYNC = 2,  // so, and whoever frees it waits for its streams
    OOMPH_GUARD_FILL = 4,  // blocks are filled with NaN when taken and when freed
} oomph_guard_t;

typedef struct oomph_config {
    oomph_offload_t offload;
    bool strict; // what would fall back for want of device pages is an error
    oomph_host_kind_t host_kind;
    uint64_t host_limit_bytes;    // most host bytes of all devices; 0: none
    uint64_t host_page_max;       // most host pages of a process, as each that the CPU
                                  // may use takes a mapping of it; 0: any number
    uint64_t host_ahead_bytes;    // of host pages made ahead, once any were needed
    uint64_t device_limit_bytes;  // most device bytes per device; 0: the whole card
    double device_limit_fraction; // the same as a fraction of the card; 0: not set
    int64_t reserve_bytes; // device bytes left to libraries; OOMPH_AUTO: 2 %, 256 MiB
    uint64_t page_bytes;   // physical page; a power of two; 0: the granularity, or more
                           // where host_limit_bytes would take over host_page_max
    bool plan;             // pack repeating steps (layout.h)
    bool promote;   // idle blocks return from the host when a step ends (oomph_step)
    unsigned guard; // of oomph_guard_t; UNMAP switches `plan` off
} oomph_config_t;

typedef enum oomph_notice_kind {
    OOMPH_NOTICE_MAPPED, // pages were mapped
    OOMPH_NOTICE_FREED,  // a deferred free has been completed
} oomph_notice_kind_t;

typedef struct oomph_notice {
    oomph_notice_kind_t kind;
    int device;
    oomph_addr_t addr;
    size_t bytes;
    oomph_stream_t stream; // of FREED; oomph_lookup() knows that of MAPPED
    oomph_pool_id_t pool;  // likewise
} oomph_notice_t;

// Called by the core with no lock held; any may be NULL. They must not throw.
typedef struct oomph_hooks {
    // Around anything that may wait for the GPU, such as to release the GIL.
    // What the first returns is handed to the second.
    void *(*before_wait)(void);
    void (*after_wait)(void *state);
    // Asks the embedder to free what it caches. It may call oomph_free.
    void (*free_memory)(int device);
    // Asks it to find what nothing can reach any more, which may take long, and to free
    // that (oomph_collection_begin). It may call oomph. `last`: an error comes next, so
    // it may try harder. Gives the bytes freed, or false if it could not look.
    bool (*collect_garbage)(bool last, size_t *bytes);
    // The pages at [addr, addr + bytes) are about to be unmapped. Only while watched.
    void (*unmapping)(int device, oomph_addr_t addr, size_t bytes,
                      oomph_stream_t stream);
    // Something happened. Only while watched.
    void (*notice)(const oomph_notice_t *notice);
    // A block fell back to the host, the `nth` of its step, from 1.
    void (*rescued)(int device, size_t bytes, int64_t nth);
    // Which line this thread executes (oomph_call_site). It must not wait for anything.
    oomph_site_t (*call_site)(bool in_backward);
    // What is idle between steps (oomph_mark_idle), in the order in which it may leave
    // the device: addresses in its blocks, malloc'ed, for the core to free. Gives how
    // many.
    size_t (*idle_blocks)(int device, oomph_addr_t **addrs);
    // The modules whose forward this thread is in, innermost first: at most `capacity`
    // addresses of Python objects. Gives how many. It must not wait either.
    size_t (*modules)(uint64_t *addrs, size_t capacity);
} oomph_hooks_t;

// Defaults: on-oom, auto, no host bytes, the whole card, auto, granularity, plan,
// promote, never.
oomph_config_t oomph_config_default(void);

// Fixes the settings. Errors: OOMPH_ERR_INVALID; OOMPH_ERR_STATE once started.
oomph_status_t oomph_configure(const oomph_config_t *config);

// Adds hooks; a NULL member leaves what is set. Call before the first allocation.
void oomph_set_hooks(const oomph_hooks_t *hooks);

// Whether the hooks that only a watcher needs are called.
void oomph_watch(bool on);

// Whether there is a driver that oomph can work with. Initialises nothing.
// Errors: OOMPH_ERR_DRIVER.
oomph_status_t oomph_find_driver(void);

// Whether a stream that only uses memory must be announced (oomph_know_stream): the
// driver has no event for all work of a device (before CUDA 12.5), and what is freed is
// to wait for that, too. False where there is no driver.
bool oomph_must_know_streams(void);

// Loads the driver and gives the number of its devices. Creates no context: a device
// is opened by the first call that needs it. Repeating it is harmless.
// Errors: OOMPH_ERR_DRIVER (no driver, or too old a driver), OOMPH_ERR_STATE.
oomph_status_t oomph_start(int *device_count);

// Stops background work. Memory stays valid; the process is about to end.
void oomph_stop(void);

/* ---- Memory */

typedef struct oomph_request {
    int device;
    size_t bytes;
    size_t block_bytes; // the block shall occupy at least so many; 0: as many as asked
    oomph_stream_t stream;
    bool stream_lives;    // the stream is never destroyed, so its handle names it
    bool may_use_reserve; // a library's workspace: may use half of the headroom
    oomph_pool_id_t pool;
    void *user;        // kept with the block, returned when it is freed
    oomph_site_t site; // who asks; 0: unknown
} oomph_request_t;

typedef enum oomph_tier {
    OOMPH_TIER_DEVICE,
    OOMPH_TIER_HOST,
    OOMPH_TIERS
} oomph_tier_t;

typedef enum oomph_block_state {
    OOMPH_BLOCK_HOLE,     // address space without pages
    OOMPH_BLOCK_FREE,     // backed and free
    OOMPH_BLOCK_USED,     // handed out
    OOMPH_BLOCK_DEFERRED, // freed, but another stream may still use it
} oomph_block_state_t;

typedef struct oomph_block_info {
    int device;
    oomph_addr_t addr;
    size_t bytes;           // what the block occupies
    size_t requested_bytes; // what was asked for; 0 unless USED or DEFERRED
    oomph_block_state_t state;
    oomph_tier_t tier;
    size_t host_bytes; // of the block, on host: none or all, unless it shares pages
    bool small;        // of the pools for blocks up to 1 MiB
    oomph_stream_t stream;
    oomph_pool_id_t pool;
    oomph_addr_t segment_addr; // the reserved range that it lies in
    size_t segment_bytes;
    bool adopted; // the range is not made of pages: a source's, or page-locked memory
    void *user;
    oomph_site_t site; // who asked for it; 0: unknown, or FREE
} oomph_block_info_t;

// Gives a block of at least `bytes` that may be used on `stream` at once, aligned to
// 512 bytes. `bytes` 0 gives address 0. Where no device page can be had the block is
// put on the host, if the settings allow it: it is used like any other.
// Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_malloc(const oomph_request_t *request, oomph_addr_t *addr);

// Takes the block back; it is reused on its own stream at once, and elsewhere when all
// work that the device has been given so far has finished. Waits for the GPU only if
// guard is SYNC, and for the lock only if guard is UNMAP or `freed` is wanted (may be
// NULL): the block as it was, with FREE or DEFERRED as its state. `user` is the
// caller's again, a DEFERRED block has none. Address 0 is ignored. Errors:
// OOMPH_ERR_INVALID if no such block is in use; nothing is freed.
oomph_status_t oomph_free(oomph_addr_t addr, oomph_block_info_t *freed);

// What this thread frees from now on, until the end, is garbage that was collected: the
// embedder's hook says so, in one thread at a time. The end gives the bytes.
void oomph_collection_begin(void);
size_t oomph_collection_end(void);

// Says that `stream`, of this or another device, uses the block too: once freed, it is
// reused only when the work queued there at that time has finished. `stream_lives` as
// in oomph_request_t. A foreign address is ignored. Errors: OOMPH_ERR_NO_MEMORY (host
// memory), OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_record_stream(oomph_addr_t addr, int stream_device,
                                   oomph_stream_t stream, bool stream_lives);

/* ---- What a planner moves out of the way of need */

// A buffer of at least `bytes` on host pages, for copies on `stream`, which is never
// destroyed. It is freed as any block, but is no allocation of the program's: PyTorch's
// figures leave it out, and it is no rescue. Never waits for the device unless host
// pages that are free must come from elsewhere. Errors: OOMPH_ERR_NO_MEMORY (host
// pages, the host limit, or offloading is off), OOMPH_ERR_INVALID, OOMPH_ERR_DRIVER.
oomph_status_t oomph_buffer(int device, size_t bytes, oomph_stream_t stream,
                            oomph_addr_t *addr);

// Queues a copy of `bytes` on the stream, between any memory that the device may use.
// Errors: OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_copy(int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
                          oomph_stream_t stream);

// Whether the device has reached an event that others recorded. False while any stream
// captures, on any device: asking CUDA would end the capture. Errors: OOMPH_ERR_DRIVER,
// OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_event_passed(int device, oomph_event_t event, bool *passed);

// For a planner that cannot make room for large blocks. If a block of this size, at
// least `min_bytes`, fell back to the host in the last step, the next one that finds no
// room goes there at once and is not a rescue. 0 (default): off. Errors:
// OOMPH_ERR_INVALID, OOMPH_ERR_DRIVER.
oomph_status_t oomph_predict_host(int device, size_t min_bytes);

// What the program's blocks in use take together, on device and host, in bytes.
typedef struct oomph_usage {
    size_t now;
    size_t high;         // the most since the last call
    size_t host;         // now, of these on host pages
    size_t host_high;    // the most since the last call
    size_t device_high;  // the most on the device since the last call
    size_t device_bytes; // that blocks can have on this device within its limits
} oomph_usage_t;

// Reads it and resets the marks. For one caller: a second one would reset them, too.
// Errors: OOMPH_ERR_INVALID, OOMPH_ERR_DRIVER.
oomph_status_t oomph_read_usage(int device, oomph_usage_t *usage);

// Between the two nothing falls back to the host, whichever thread asks for it: a
// failed allocation is an error. They nest. What lies on the host stays there.
void oomph_forbid_offload(void);
// Errors: OOMPH_ERR_INVALID if offload is not forbidden.
oomph_status_t oomph_allow_offload(void);
bool oomph_offload_is_forbidden(void);

// The block that contains `addr`. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_lookup(oomph_addr_t addr, oomph_block_info_t *info);

// Returns free pages to the driver, after waiting for the work that used them: those
// of one pool, or for {0, 0} of every pool that no graph holds. Never fails: what the
// driver does not take back stays, and a device that was never used has nothing.
oomph_status_t oomph_empty_cache(int device, oomph_pool_id_t pool, size_t *freed_bytes);

// Returns at least `bytes` of free pages to the driver if there are so many.
// Errors: OOMPH_ERR_STATE (the device is not open).
oomph_status_t oomph_give_back(int device, size_t bytes, size_t *freed_bytes);

// Makes all memory of `device` accessible to `peer`, now and in future. Where it fails,
// some of it is accessible already; it may be tried again. Errors: of opening, for
// either device, and OOMPH_ERR_DRIVER.
oomph_status_t oomph_enable_peer(int device, int peer);

/* ---- Moving blocks in use
 *
 * A block in use changes its tier while its address stays. Its pages are unmapped for a
 * moment, in which nothing may use them; no allocator can know who launches. So blocks
 * move only when the caller says that nobody launches work that uses them until the
 * call has returned: work that was queued before is waited for.
 *
 * A block moves with the pages that it has for itself. A page that it shares with
 * another block in use, at either end, follows once both are moved: then nothing may
 * use the other either. A block that has no page for itself moves together with those
 * that it shares its pages with, or not at all.
 */

// What became of a block that was to be moved.
typedef enum oomph_outcome {
    OOMPH_OUTCOME_THERE,     // it lies where it was wanted, since now or before
    OOMPH_OUTCOME_UNKNOWN,   // it is no block in use of the device
    OOMPH_OUTCOME_SMALL,     // it shares its pages with others of at most 1 MiB
    OOMPH_OUTCOME_NEIGHBOUR, // it shares its pages with blocks that do not move
    OOMPH_OUTCOME_POOL,      // it is of a CUDA graph or a MemPool
    OOMPH_OUTCOME_ADOPTED,   // it is not made of pages: a pinned block, or a source's
    OOMPH_OUTCOME_EXPORTED,  // other processes have its pages mapped
    OOMPH_OUTCOME_PINNED,    // it is to stay on the device
    OOMPH_OUTCOME_NO_ROOM,   // there are not enough pages for it
    OOMPH_OUTCOMES
} oomph_outcome_t;

typedef struct oomph_move {
    oomph_addr_t addr;       // anywhere in the block
    oomph_outcome_t outcome; // set where the call returns OOMPH_OK
} oomph_move_t;

// Moves blocks of one device to a tier, after waiting for the device once: those for
// which there is room, the first before the others. `moved_bytes` are those of the
// blocks that lay elsewhere before. A block moved to the host stays there, until it is
// moved back; others may return by themselves (oomph_mark_idle).
// Errors: OOMPH_ERR_STATE (the device is not open, something captures, no host pages
// can be mapped here), OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER. Then no block has moved;
// if the driver refuses even to undo, some may have moved with their contents
// (oomph_lookup() tells), and what could not be mapped again at all the error calls
// lost.
oomph_status_t oomph_move(int device, oomph_tier_t tier, oomph_move_t *moves,
                          size_t count, size_t *moved_bytes);

// The outcome in words, such as "it is of a CUDA graph or a MemPool".
const char *oomph_outcome_text(oomph_outcome_t outcome);

// Says that the block in use that contains `addr` is to stay on the device, or no
// longer. It is moved nowhere by this. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_pin(oomph_addr_t addr, bool on);

// Says that the block in use that contains `addr` is idle between steps, until it is
// freed: whoever uses it does so in work that was queued before the thread that ends
// steps calls oomph_step(), or queues it after that has returned; and likewise with any
// call of that thread's to oomph_pool_begin(). So do parameters,
// gradients and the state of optimizers; a buffer that another thread fills does not.
// Only such blocks return to the device by themselves. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_mark_idle(oomph_addr_t addr);

// Says that work is queued on a stream, which is never destroyed if it `lives`, though
// nothing may ever be allocated on it. Errors: OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY
// (host memory), OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_know_stream(int device, oomph_stream_t stream, bool lives);

/* ---- Sharing with other processes
 *
 * The exporter keeps the block until every importer has dropped it; nobody but the
 * caller knows when that is. The pages of a block that was exported never serve another
 * address: once free, they serve the same one or are returned to the driver.
 */

// What names the pages of a block to another process: plain bytes to be sent there.
typedef struct oomph_ticket {
    void *data; // of malloc(), the caller's to free()
    size_t bytes;
} oomph_ticket_t;

// Names the pages of the block in use that contains `addr`, which lies `offset` bytes
// behind the first of them. Each page takes a file descriptor for as long as it exists.
// Errors: OOMPH_ERR_INVALID (no block in use, or one on the host), OOMPH_ERR_NO_MEMORY
// (host memory, descriptors), OOMPH_ERR_DRIVER.
oomph_status_t oomph_export(oomph_addr_t addr, oomph_ticket_t *ticket, size_t *offset);

// Maps pages that another process named, while it still has them, for use on `device`,
// theirs. Errors: OOMPH_ERR_INVALID (no ticket), OOMPH_ERR_DRIVER (also if the system
// does not give us the process's descriptors), OOMPH_ERR_NO_MEMORY.
oomph_status_t oomph_import(int device, const oomph_ticket_t *ticket,
                            oomph_addr_t *addr);
// Unmaps them after waiting for the device; while a stream captures, later.
// Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_unimport(int device, oomph_addr_t addr);

/* ---- Pools of graph captures and MemPools */

// Use counts: pages of a pool in use never move to another pool. One that is retained
// by this call is a MemPool's, and gets no host memory. Errors: of opening,
// OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_pool_retain(int device, oomph_pool_id_t pool);
// Retains the pool and says that the calling thread is about to allocate to it, on this
// stream, which perhaps captures; and that it does so no more. Where the capture fails,
// the second need not be called. While it captures no room can be made: so the first
// does, where steps have shown that the device has too little (capture.c). It may wait
// for the device then, and moves what is idle between steps. Errors: of opening,
// OOMPH_ERR_NO_MEMORY (host memory), OOMPH_ERR_DRIVER; then the pool is not retained.
oomph_status_t oomph_pool_begin(int device, oomph_pool_id_t pool, oomph_stream_t stream,
                                bool stream_lives);
// Errors: OOMPH_ERR_STATE (the device is not open), OOMPH_ERR_NO_MEMORY (host memory),
// OOMPH_ERR_DRIVER; it counts all the same.
oomph_status_t oomph_pool_end(int device, oomph_stream_t stream, bool stream_lives);
// Errors: OOMPH_ERR_STATE (the device is not open), OOMPH_ERR_INVALID (it is not in
// use).
oomph_status_t oomph_pool_release(int device, oomph_pool_id_t pool);
// 0 where the device is not open.
int oomph_pool_use_count(int device, oomph_pool_id_t pool);

typedef enum oomph_pool_flag {
    OOMPH_POOL_ON_OOM = 1,   // its free pages may serve other pools before an error
    OOMPH_POOL_NO_SPLIT = 2, // a free block serves only whole
} oomph_pool_flag_t;
// Errors: of opening, OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_pool_set_flag(int device, oomph_pool_id_t pool,
                                   oomph_pool_flag_t flag, bool on);

// Memory of a pool that comes from elsewhere, such as NCCL's allocator. Called with
// no lock held. `take` returns 0 when it has none; it may replace the source. `take`
// NULL: the pool's memory is ours again.
typedef struct oomph_source {
    oomph_addr_t (*take)(void *context, size_t bytes, oomph_stream_t stream);
    void (*give)(void *context, oomph_addr_t addr);
    void *context;
} oomph_source_t;
// Errors: of opening, OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_pool_set_source(int device, oomph_pool_id_t pool,
                                     const oomph_source_t *source);

// Puts a block back into use at an address that is free in the pool, as restoring
// the state of a captured graph needs. Errors: OOMPH_ERR_INVALID if it is not free.
oomph_status_t oomph_revive(const oomph_request_t *request, oomph_addr_t addr);

/* ---- Steps */

// A training step has ended, on every device. Called by optimizer hooks. Gives a mask
// of the devices on which a block fell back to the host in it. Blocks that are idle
// between steps (oomph_mark_idle) and lived on host all through one return to the
// device, if there is room at the peak of a step and `promote` is set. Where several
// threads have ended steps, one may use what another leaves: then no block returns.
uint64_t oomph_step(void);

/* ---- Statistics */

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
    OOMPH_RUNG_HOST,      // host memory
    OOMPH_RUNG_ERROR,     // none helped
    OOMPH_RUNGS
};

enum { OOMPH_STEPS_KEPT = 100 }; // steps whose rescues are kept one by one

typedef struct oomph_stats {
    // PyTorch's own figures; memory_stats() names and defines them.
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
    int64_t rescued_bytes;      // their bytes
    int64_t predicted_count;    // blocks put on the host as in the step before
    int64_t predicted_bytes;    // their bytes
    int64_t host_block_bytes;   // bytes of blocks in use that live on host pages
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

// These never fail; a device that was never used has zeros, except for limits.
oomph_status_t oomph_get_stats(int device, oomph_stats_t *stats);
oomph_status_t oomph_reset_peak_stats(int device);
oomph_status_t oomph_reset_accumulated_stats(int device);

// Fraction of the card that oomph may take, in addition to the configured limit. Opens
// no device: one that is not in use yet keeps it until it is. Errors: OOMPH_ERR_INVALID
// (no such device, or not in [0, 1]), OOMPH_ERR_STATE, OOMPH_ERR_DRIVER (no driver).
oomph_status_t oomph_set_fraction(int device, double fraction);
double oomph_get_fraction(int device);

// What the device has and may still give, as cudaMemGetInfo says it, but under the
// limits set: a card of `device_limit` bytes. Errors: of opening, OOMPH_ERR_DRIVER.
oomph_status_t oomph_memory_info(int device, size_t *free_bytes, size_t *total_bytes);

// The largest block that could be had from free pages, after waiting for their work,
// and new ones. Errors: of opening.
oomph_status_t oomph_largest_free(int device, size_t *bytes);

// Tries which kind of host memory works on the device, by using it; OOMPH_HOST_OFF if
// none does. Errors: of opening.
oomph_status_t oomph_probe_host(int device, oomph_host_kind_t *kind);

typedef void (*oomph_visit_t)(const oomph_block_info_t *block, void *context);

// Calls `visit` for every block of a device in order of address, segment by segment,
// under the device lock: `visit` must not call oomph. Holes are left out. Never fails:
// a device that was never used has none.
oomph_status_t oomph_walk(int device, oomph_visit_t visit, void *context);

// Walks every record and says whether they agree with each other.
// Errors: OOMPH_ERR_INVALID, with what is wrong in oomph_error_detail().
oomph_status_t oomph_check(int device);

const char *oomph_host_kind_name(oomph_host_kind_t kind);

/* ---- Call sites: which line of source holds the memory */

typedef struct oomph_site_info {
    const char *file, *function; // UTF-8; they live as long as the process
    int line;
} oomph_site_info_t;

typedef struct oomph_site_bytes {
    oomph_site_t site;
    size_t bytes, count; // of its blocks
} oomph_site_bytes_t;

// The number of a line; 0 if there is no host memory for it. Equal lines have equal
// numbers, as long as the process lives.
oomph_site_t oomph_site(const char *file, const char *function, int line);

// What the number stands for, inferred or not. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_site_info(oomph_site_t site, oomph_site_info_t *info);

// The line of the user's code that this thread executes, as the hook knows it; 0 if
// none does. With `in_backward`, 0 also where autograd and no code of the user asks.
oomph_site_t oomph_call_site(bool in_backward);

// The sites that hold blocks on the device, or held them when all sites together held
// most since peaks were reset: at most `capacity` of them; `count` is how many there
// are. Blocks of unknown sites are left out. Never fails.
oomph_status_t oomph_live_sites(int device, bool at_peak, oomph_site_bytes_t *rows,
                                size_t capacity, size_t *count);

/* ---- Who held the memory when it was short */

// Every block in use of a device, in columns.
typedef struct oomph_block_list {
    size_t count;
    oomph_addr_t *addrs;
    uint64_t *bytes;
    oomph_site_t *sites;
    uint8_t *marks; // OOMPH_MARK_*
} oomph_block_list_t;

enum {
    OOMPH_MARK_HOST = 1,    // it lies on the host
    OOMPH_MARK_POOL = 2,    // it is of a CUDA graph or a MemPool
    OOMPH_MARK_WAITING = 4, // it is freed, but other streams may still use it
};

// Lists them. The columns are one piece of memory: free(blocks->addrs).
// Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_list_blocks(int device, oomph_block_list_t *blocks);

enum { OOMPH_MODULES_MAX = 64 };

// An allocation that failed, as whoever throws the error knows it.
typedef struct oomph_oom {
    oomph_request_t request;
    char message[1024]; // the error's text
    char doing[128];    // autograd's node; "": none
    bool autocast;      // was on in the thread
    bool grad;          // forward was recorded in the thread
    size_t free_bytes, total_bytes;
    oomph_stats_t stats;
    // By oomph_keep_oom():
    oomph_block_list_t blocks;
    uint64_t modules[OOMPH_MODULES_MAX]; // whose forward the thread was in
    size_t module_count;
} oomph_oom_t;

// Whether a stream captures on the device, so that nothing may be freed on the side.
bool oomph_captures(int device);

// Keeps the failure, with the blocks in use of its device, in place of the last one;
// not one of a pool whose memory comes from elsewhere. Takes neither the GIL nor device
// memory; without host memory the list is empty.
void oomph_keep_oom(const oomph_oom_t *oom);

// Hands out what was kept last, once: free(oom->blocks.addrs). False: none.
bool oomph_take_oom(oomph_oom_t *oom);

// Smaller requests need no site: nobody asks for it.
size_t oomph_site_min_bytes(void);

/* ---- What guard unmapped */

typedef struct oomph_unmapped {
    oomph_addr_t addr;
    size_t bytes, requested_bytes;
    oomph_stream_t stream;
    oomph_tier_t tier;
    oomph_site_t taken_at, freed_at; // 0: unknown
    int64_t freed_ns, unmapped_ns;   // of CLOCK_MONOTONIC
} oomph_unmapped_t;

enum { OOMPH_UNMAPPED_KEPT = 1024 }; // of each device

// The blocks unmapped last on a device, the newest first, at most `capacity` of them;
// `count` is how many are known. Asks nothing of the driver, which may have failed.
// Never fails.
oomph_status_t oomph_unmapped(int device, oomph_unmapped_t *rows, size_t capacity,
                              size_t *count);

/* ---- The table that reaches another extension module in a capsule */

#define OOMPH_CAPSULE "oomph._C.api"

typedef struct oomph_api_table {
    size_t abi;   // OOMPH_ABI
    size_t bytes; // sizeof(oomph_api_t)
    const char *(*error_detail)(void);
    void (*set_hooks)(const oomph_hooks_t *);
    void (*watch)(bool);
    oomph_status_t (*start)(int *);
    oomph_status_t (*malloc)(const oomph_request_t *, oomph_addr_t *);
    oomph_status_t (*free)(oomph_addr_t, oomph_block_info_t *);
    oomph_status_t (*record_stream)(oomph_addr_t, int, oomph_stream_t, bool);
    oomph_status_t (*lookup)(oomph_addr_t, oomph_block_info_t *);
    oomph_status_t (*empty_cache)(int, oomph_pool_id_t, size_t *);
    oomph_status_t (*enable_peer)(int, int);
    oomph_status_t (*export_block)(oomph_addr_t, oomph_ticket_t *, size_t *);
    oomph_status_t (*import_block)(int, const oomph_ticket_t *, oomph_addr_t *);
    oomph_status_t (*unimport_block)(int, oomph_addr_t);
    oomph_status_t (*pool_retain)(int, oomph_pool_id_t);
    oomph_status_t (*pool_begin)(int, oomph_pool_id_t, oomph_stream_t, bool);
    oomph_status_t (*pool_end)(int, oomph_stream_t, bool);
    oomph_status_t (*pool_release)(int, oomph_pool_id_t);
    int (*pool_use_count)(int, oomph_pool_id_t);
    oomph_status_t (*pool_set_flag)(int, oomph_pool_id_t, oomph_pool_flag_t, bool);
    oomph_status_t (*pool_set_source)(int, oomph_pool_id_t, const oomph_source_t *);
    oomph_status_t (*revive)(const oomph_request_t *, oomph_addr_t);
    oomph_status_t (*get_stats)(int, oomph_stats_t *);
    oomph_status_t (*reset_peak_stats)(int);
    oomph_status_t (*reset_accumulated_stats)(int);
    oomph_status_t (*set_fraction)(int, double);
    double (*get_fraction)(int);
    oomph_status_t (*memory_info)(int, size_t *, size_t *);
    oomph_status_t (*largest_free)(int, size_t *);
    oomph_status_t (*walk)(int, oomph_visit_t, void *);
    oomph_site_t (*call_site)(bool);
    void (*keep_oom)(const oomph_oom_t *);
    size_t (*site_min_bytes)(void);
} oomph_api_t;

const oomph_api_t *oomph_api(void);

#ifdef __cplusplus
}
#endif
