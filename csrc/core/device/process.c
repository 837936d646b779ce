/* process.c - what the process has: settings and hooks (oomph/start.h), the driver, and
 * its devices. It asks the embedder which line allocates (oomph/site.h).
 */
#include "core/device/process.h"

// Host kind auto, guard off, and no limits are 0.
#define CONFIG_DEFAULT                                                                 \
    {.offload = OOMPH_OFFLOAD_AUTO,                                                    \
     .reserve_bytes = OOMPH_AUTO,                                                      \
     .plan = true,                                                                     \
     .promote = true}

oomph_process_t oomph_process = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                 .config = CONFIG_DEFAULT};

static void note_fork(void)
{
    atomic_store(&oomph_process.forked, true);
}

/* ---- Settings and start */

oomph_config_t oomph_config_default(void)
{
    return (oomph_config_t)CONFIG_DEFAULT;
}

static void set_config(const oomph_config_t *config)
{
    oomph_config_t *ours = &oomph_process.config;

    *ours = *config;
    if ((ours->guard & OOMPH_GUARD_SYNC) != 0)
        ours->guard |= OOMPH_GUARD_UNMAP;
    if ((ours->guard & OOMPH_GUARD_UNMAP) != 0)
        ours->plan = false; // it uses addresses again
}

oomph_status_t oomph_configure(const oomph_config_t *config)
{
    oomph_status_t status = OOMPH_OK;

    if (config->device_limit_fraction < 0 || config->device_limit_fraction > 1)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "device_limit as a fraction must be in (0, 1]");
    if ((config->page_bytes & (config->page_bytes - 1)) != 0)
        return oomph_fail(OOMPH_ERR_INVALID, "page must be a power of two");
    pthread_mutex_lock(&oomph_process.lock);
    if (oomph_process.started)
        status = oomph_fail(OOMPH_ERR_STATE, "oomph has started; settings are fixed");
    else
        set_config(config);
    pthread_mutex_unlock(&oomph_process.lock);
    return status;
}

bool oomph_limit_host(uint64_t bytes)
{
    bool is_open = false;

    pthread_mutex_lock(&oomph_process.lock);
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++)
        is_open = is_open || atomic_load(&oomph_process.devices[i]) != NULL;
    if (!is_open)
        oomph_process.config.host_limit_bytes = oomph_process.host.limit_bytes = bytes;
    pthread_mutex_unlock(&oomph_process.lock);
    return !is_open;
}

void oomph_set_hooks(const oomph_hooks_t *hooks)
{
    oomph_hooks_t *ours = &oomph_process.hooks;

    pthread_mutex_lock(&oomph_process.lock);
    if (hooks->before_wait != NULL) {
        ours->before_wait = hooks->before_wait;
        ours->after_wait = hooks->after_wait;
    }
    if (hooks->free_memory != NULL)
        ours->free_memory = hooks->free_memory;
    if (hooks->collect_garbage != NULL)
        ours->collect_garbage = hooks->collect_garbage;
    if (hooks->make_room != NULL)
        ours->make_room = hooks->make_room;
    if (hooks->unmapping != NULL)
        ours->unmapping = hooks->unmapping;
    if (hooks->notice != NULL)
        ours->notice = hooks->notice;
    if (hooks->rescued != NULL)
        ours->rescued = hooks->rescued;
    if (hooks->call_site != NULL)
        ours->call_site = hooks->call_site;
    if (hooks->idle_blocks != NULL)
        ours->idle_blocks = hooks->idle_blocks;
    pthread_mutex_unlock(&oomph_process.lock);
}

void oomph_watch(bool on)
{
    atomic_store(&oomph_process.watched, on);
}

// The caller holds the process lock.
static const oomph_driver_t *the_driver(void)
{
    if (oomph_process.driver == NULL)
        oomph_process.driver = oomph_driver_cuda();
    return oomph_process.driver;
}

oomph_status_t oomph_find_driver(void)
{
    pthread_mutex_lock(&oomph_process.lock);
    oomph_status_t status = the_driver()->find();
    pthread_mutex_unlock(&oomph_process.lock);
    return status;
}

bool oomph_must_know_streams(void)
{
    return oomph_find_driver() == OOMPH_OK && !the_driver()->records_all();
}

oomph_status_t oomph_start(int *device_count)
{
    oomph_status_t status = OOMPH_OK;

    if (oomph_is_forked())
        return oomph_fail(OOMPH_ERR_STATE, "CUDA cannot be used in a forked child");
    pthread_mutex_lock(&oomph_process.lock);
    if (!oomph_process.started)
        status = the_driver()->start(&oomph_process.device_count);
    if (status == OOMPH_OK && !oomph_process.started) {
        oomph_process.started = true;
        oomph_process.host.limit_bytes = oomph_process.config.host_limit_bytes;
        for (int i = 0; i < OOMPH_DEVICE_MAX; i++)
            oomph_process.fractions[i] = 1;
        pthread_atfork(NULL, NULL, note_fork);
    }
    if (status == OOMPH_OK)
        *device_count = oomph_process.device_count;
    pthread_mutex_unlock(&oomph_process.lock);
    return status;
}

oomph_site_t oomph_call_site(bool in_backward)
{
    oomph_site_t (*hook)(bool) = oomph_process.hooks.call_site;
    return hook != NULL ? hook(in_backward) : 0;
}

size_t oomph_site_min_bytes(void)
{
    return oomph_guards(OOMPH_GUARD_UNMAP) ? 1 : OOMPH_SMALL_MAX;
}

/* ---- Devices */

oomph_status_t oomph_not_ours(oomph_addr_t addr)
{
    if (oomph_is_forked())
        return oomph_fail(OOMPH_ERR_STATE, "CUDA cannot be used in a forked child");
    return oomph_fail(OOMPH_ERR_INVALID, "0x%llx is not an address of oomph's",
                      (unsigned long long)addr);
}

oomph_status_t oomph_not_open(int ordinal)
{
    return oomph_fail(OOMPH_ERR_STATE, "device %d is not open", ordinal);
}

oomph_status_t oomph_check_ordinal(int ordinal)
{
    if (ordinal >= 0 && ordinal < oomph_process.device_count &&
        ordinal < OOMPH_DEVICE_MAX)
        return OOMPH_OK;
    return oomph_fail(OOMPH_ERR_INVALID, "there is no device %d; the driver has %d",
                      ordinal, oomph_process.device_count);
}
