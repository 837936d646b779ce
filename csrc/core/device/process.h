/* process.h - the state of the process: what it was configured to do, and its devices.
 */
#pragma once
#include "core/memory/page.h"
#include "driver/driver.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct oomph_device oomph_device_t;

// What the process was configured to do; fixed by the first oomph_start(), but for the
// limit of host memory.
typedef struct oomph_process {
    pthread_mutex_t lock; // of settings, of the start, and of opening a device
    const oomph_driver_t *driver;
    oomph_config_t config;
    oomph_hooks_t hooks;
    atomic_bool watched; // somebody wants to hear of notices and of unmapping
    atomic_int offload_bans[OOMPH_BANS]; // regions without offload, now open
    _Atomic(int64_t) garbage_again_ns;   // garbage is not looked for before
    oomph_host_limit_t host;
    int device_count;
    double fractions[OOMPH_DEVICE_MAX]; // of each card, open or not, that may be taken
    bool started;
    atomic_bool forked; // this is a child: CUDA does not work here
    _Atomic(oomph_device_t *) devices[OOMPH_DEVICE_MAX];
} oomph_process_t;

extern oomph_process_t oomph_process;

static inline bool oomph_is_forked(void)
{
    return atomic_load(&oomph_process.forked);
}

// The device if it is open and this is no forked child, else NULL.
static inline oomph_device_t *oomph_device_peek(int ordinal)
{
    if (ordinal < 0 || ordinal >= OOMPH_DEVICE_MAX || oomph_is_forked())
        return NULL;
    return atomic_load_explicit(&oomph_process.devices[ordinal], memory_order_acquire);
}

// Errors: OOMPH_ERR_INVALID (no such device). The process has started.
oomph_status_t oomph_check_ordinal(int ordinal);
// The errors for an address of no open device, OOMPH_ERR_INVALID (in a forked child
// OOMPH_ERR_STATE), and for a device that is not open, OOMPH_ERR_STATE.
oomph_status_t oomph_not_ours(oomph_addr_t addr);
oomph_status_t oomph_not_open(int ordinal);

static inline bool oomph_guards(oomph_guard_t how)
{
    return (oomph_process.config.guard & how) != 0;
}
