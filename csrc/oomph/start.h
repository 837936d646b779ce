/* start.h - settings, the embedder's hooks, and the start. */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum oomph_offload {
    OOMPH_OFFLOAD_OFF,    // a failed allocation is an error
    OOMPH_OFFLOAD_ON_OOM, // a block that finds no device page falls back to the host
    OOMPH_OFFLOAD_ALWAYS, // likewise; who plans ahead of need does so from the start
    OOMPH_OFFLOAD_AUTO,   // ON_OOM; OFF on a device that uses the host's memory
} oomph_offload_t;

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
    // Asks it to send to the host, of what lies on the device and will be used last, at
    // least so many bytes, if it can. It may call oomph. Gives the bytes that come free
    // once their copies have been made.
    size_t (*make_room)(int device, size_t bytes);
    // The pages at [addr, addr + bytes) are about to be unmapped. Only while watched.
    void (*unmapping)(int device, oomph_addr_t addr, size_t bytes,
                      oomph_stream_t stream);
    // Something happened. Only while watched.
    void (*notice)(const oomph_notice_t *notice);
    // So many bytes of a block fell back to the host, the `nth` of its step, from 1.
    void (*rescued)(int device, size_t bytes, int64_t nth);
    // Which line this thread executes (oomph_call_site). It must not wait for anything.
    oomph_site_t (*call_site)(bool in_backward);
    // What is idle between steps (oomph_mark_idle), in the order in which it may leave
    // the device: addresses in its blocks, malloc'ed, for the core to free. Gives how
    // many.
    size_t (*idle_blocks)(int device, oomph_addr_t **addrs);
} oomph_hooks_t;

// Defaults: auto, auto, no host bytes, the whole card, auto, granularity, plan,
// promote, never.
oomph_config_t oomph_config_default(void);

// Fixes the settings. Errors: OOMPH_ERR_INVALID; OOMPH_ERR_STATE once started.
oomph_status_t oomph_configure(const oomph_config_t *config);

// Changes the limit of host memory. False: a device is open, and the limit stays.
bool oomph_limit_host(uint64_t bytes);

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
