/* device.c - settings, start, and the devices: what is theirs as a whole. */
#include "device.h"

#include <stdlib.h>

#define RESERVE_MIN ((size_t)256 << 20) // bytes left to libraries by `reserve: auto`
enum {
    RESERVE_SHARE = 50, // and at least a 50th of the card
    PAGES_MIN = 2048,   // that a card has at least, if pages are made larger
};

oomph_process_t oomph_process = {
    .config = {.offload = OOMPH_OFFLOAD_ON_OOM,
               .reserve_bytes = OOMPH_AUTO,
               .plan = true,
               .promote = true},
};

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER; // settings, opening
static atomic_bool forked; // this is a child: CUDA does not work here

static void note_fork(void)
{
    atomic_store(&forked, true);
}

/* ---- Settings and start */

oomph_config_t oomph_config_default(void)
{
    return (oomph_config_t){.offload = OOMPH_OFFLOAD_ON_OOM,
                            .host_kind = OOMPH_HOST_AUTO,
                            .reserve_bytes = OOMPH_AUTO,
                            .plan = true,
                            .promote = true};
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

    if (config->device_limit_share < 0 || config->device_limit_share > 1)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "device_limit as a share must be in (0, 1]");
    if ((config->page_bytes & (config->page_bytes - 1)) != 0)
        return oomph_fail(OOMPH_ERR_INVALID, "page must be a power of two");
    pthread_mutex_lock(&process_lock);
    if (oomph_process.started)
        status = oomph_fail(OOMPH_ERR_STATE, "oomph has started; settings are fixed");
    else
        set_config(config);
    pthread_mutex_unlock(&process_lock);
    return status;
}

void oomph_set_hooks(const oomph_hooks_t *hooks)
{
    oomph_hooks_t *ours = &oomph_process.hooks;

    pthread_mutex_lock(&process_lock);
    if (hooks->before_wait != NULL) {
        ours->before_wait = hooks->before_wait;
        ours->after_wait = hooks->after_wait;
    }
    if (hooks->free_memory != NULL)
        ours->free_memory = hooks->free_memory;
    if (hooks->collect_garbage != NULL)
        ours->collect_garbage = hooks->collect_garbage;
    if (hooks->unmapping != NULL)
        ours->unmapping = hooks->unmapping;
    if (hooks->notice != NULL)
        ours->notice = hooks->notice;
    if (hooks->rescued != NULL)
        ours->rescued = hooks->rescued;
    if (hooks->call_site != NULL)
        ours->call_site = hooks->call_site;
    if (hooks->resting != NULL)
        ours->resting = hooks->resting;
    if (hooks->modules != NULL)
        ours->modules = hooks->modules;
    pthread_mutex_unlock(&process_lock);
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
    pthread_mutex_lock(&process_lock);
    oomph_status_t status = the_driver()->find();
    pthread_mutex_unlock(&process_lock);
    return status;
}

bool oomph_must_know_streams(void)
{
    return oomph_find_driver() == OOMPH_OK && !the_driver()->records_all();
}

oomph_status_t oomph_know_stream(int ordinal, oomph_stream_t stream, bool lives)
{
    oomph_device_t *device;
    oomph_stream_state_t *known;

    oomph_status_t status = oomph_lock_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = oomph_stream_get(&device->streams, ordinal, stream, lives, &known);
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_start(int *device_count)
{
    oomph_status_t status = OOMPH_OK;

    if (atomic_load(&forked))
        return oomph_fail(OOMPH_ERR_STATE, "CUDA cannot be used in a forked child");
    pthread_mutex_lock(&process_lock);
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
    pthread_mutex_unlock(&process_lock);
    return status;
}

void oomph_stop(void)
{
    if (atomic_load(&forked))
        return;
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++) {
        oomph_device_t *device = atomic_load(&oomph_process.devices[i]);
        if (device == NULL)
            continue;
        oomph_ahead_stop(&device->ahead);
    }
}

/* ---- Devices */

void oomph_device_limit(oomph_device_t *device)
{
    const oomph_config_t *config = &oomph_process.config;
    double total = (double)device->total_bytes;
    size_t limit = SIZE_MAX;

    if (config->device_limit_bytes != 0)
        limit = config->device_limit_bytes;
    if (config->device_limit_share > 0)
        limit = (size_t)(total * config->device_limit_share);
    if (device->fraction < 1)
        limit = oomph_min(limit, (size_t)(total * device->fraction));
    device->pages.limit_bytes = limit;
}

// The granularity; larger if host memory up to its limit takes more mappings than the
// process may have.
static size_t choose_page(const oomph_device_info_t *info)
{
    const oomph_config_t *config = &oomph_process.config;
    size_t bytes = info->page_bytes;

    if (config->host_page_max == 0 || config->offload == OOMPH_OFFLOAD_OFF ||
        config->host_kind >= OOMPH_HOST_PINNED)
        return bytes;
    while (config->host_limit_bytes / bytes > config->host_page_max &&
           info->total_bytes / (2 * bytes) >= PAGES_MIN)
        bytes *= 2;
    return bytes;
}

static oomph_status_t check_sizes(int ordinal, const oomph_device_info_t *info,
                                  size_t *page_bytes)
{
    const oomph_config_t *config = &oomph_process.config;

    *page_bytes = config->page_bytes == 0 ? choose_page(info) : config->page_bytes;
    if (*page_bytes % info->page_bytes != 0 || *page_bytes > OOMPH_CHUNK_BYTES)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "page: %zu bytes is no multiple of the %zu bytes that device "
                          "%d maps at once, or more than 1 GiB",
                          *page_bytes, info->page_bytes, ordinal);
    if (config->device_limit_bytes > info->total_bytes)
        return oomph_fail(
            OOMPH_ERR_INVALID,
            "device_limit: %.2f GiB is more than the %.2f GiB of device %d; give less, "
            "or a share such as 0.9",
            (double)config->device_limit_bytes / (1 << 30),
            (double)info->total_bytes / (1 << 30), ordinal);
    return OOMPH_OK;
}

static size_t reserve_of(const oomph_device_info_t *info)
{
    if (oomph_process.config.reserve_bytes != OOMPH_AUTO)
        return (size_t)oomph_process.config.reserve_bytes;
    return oomph_max(RESERVE_MIN, info->total_bytes / RESERVE_SHARE);
}

static oomph_status_t open_device(int ordinal, oomph_device_t **out)
{
    oomph_device_info_t info;
    size_t page_bytes;

    oomph_status_t status = oomph_process.driver->open(ordinal, &info);
    if (status == OOMPH_OK)
        status = check_sizes(ordinal, &info, &page_bytes);
    if (status != OOMPH_OK)
        return status;
    oomph_device_t *device = calloc(1, sizeof *device);
    if (device == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for device %d", ordinal);
    pthread_mutex_init(&device->climbs_lock, NULL);
    pthread_cond_init(&device->climbed, NULL);
    device->ordinal = ordinal;
    device->total_bytes = info.total_bytes;
    device->fraction = oomph_process.fractions[ordinal];
    oomph_pages_init(&device->pages, oomph_process.driver, ordinal, page_bytes,
                     &oomph_process.host);
    device->pages.notices.wanted = &oomph_process.watched;
    device->pages.reserve_bytes = reserve_of(&info);
    if (oomph_process.config.host_page_max != 0)
        device->pages.host_pages_max_bytes =
            oomph_process.config.host_page_max * page_bytes;
    oomph_device_limit(device);
    oomph_streams_init(&device->streams, oomph_process.driver, ordinal);
    oomph_ahead_init(&device->ahead, &device->pages);
    *out = device;
    return OOMPH_OK;
}

oomph_host_kind_t oomph_device_host_kind(oomph_device_t *device)
{
    oomph_link_t link = {0};

    // What did not work may do so the next time.
    if (device->pages.host_kind != OOMPH_HOST_AUTO &&
        device->pages.host_kind != OOMPH_HOST_OFF)
        return device->pages.host_kind;
    oomph_spill_probe(&device->pages, oomph_process.config.host_kind, &link);
    device->stats.link_to_host_bytes_per_s = link.to_host;
    device->stats.link_to_device_bytes_per_s = link.to_device;
    return device->pages.host_kind;
}

oomph_device_t *oomph_device_peek(int ordinal)
{
    if (ordinal < 0 || ordinal >= OOMPH_DEVICE_MAX || atomic_load(&forked))
        return NULL;
    return atomic_load_explicit(&oomph_process.devices[ordinal], memory_order_acquire);
}

oomph_status_t oomph_not_ours(oomph_addr_t addr)
{
    if (atomic_load(&forked))
        return oomph_fail(OOMPH_ERR_STATE, "CUDA cannot be used in a forked child");
    return oomph_fail(OOMPH_ERR_INVALID, "0x%llx is no address of oomph's",
                      (unsigned long long)addr);
}

static oomph_status_t check_ordinal(int ordinal, int device_count)
{
    if (ordinal >= 0 && ordinal < device_count && ordinal < OOMPH_DEVICE_MAX)
        return OOMPH_OK;
    return oomph_fail(OOMPH_ERR_INVALID, "there is no device %d; the driver has %d",
                      ordinal, device_count);
}

oomph_status_t oomph_device_get(int ordinal, oomph_device_t **device)
{
    oomph_status_t status = OOMPH_OK;
    int device_count = 0;

    *device = oomph_device_peek(ordinal);
    if (*device != NULL)
        return OOMPH_OK;
    status = oomph_start(&device_count);
    if (status != OOMPH_OK)
        return status;
    status = check_ordinal(ordinal, device_count);
    if (status != OOMPH_OK)
        return status;
    pthread_mutex_lock(&process_lock);
    *device = atomic_load(&oomph_process.devices[ordinal]);
    if (*device == NULL) {
        status = open_device(ordinal, device);
        if (status == OOMPH_OK)
            atomic_store_explicit(&oomph_process.devices[ordinal], *device,
                                  memory_order_release);
    }
    pthread_mutex_unlock(&process_lock);
    return status;
}

/* ---- What changes a device as a whole */

oomph_status_t oomph_set_fraction(int ordinal, double fraction)
{
    int device_count = 0;

    if (!(fraction >= 0 && fraction <= 1))
        return oomph_fail(OOMPH_ERR_INVALID, "a memory fraction must be in [0, 1]");
    oomph_status_t status = oomph_start(&device_count);
    if (status == OOMPH_OK)
        status = check_ordinal(ordinal, device_count);
    if (status != OOMPH_OK)
        return status;
    pthread_mutex_lock(&process_lock);
    oomph_process.fractions[ordinal] = fraction;
    oomph_device_t *device = atomic_load(&oomph_process.devices[ordinal]);
    if (device != NULL) {
        oomph_lock(device);
        device->fraction = fraction;
        oomph_device_limit(device);
        oomph_unlock(device);
    }
    pthread_mutex_unlock(&process_lock);
    return OOMPH_OK;
}

double oomph_get_fraction(int ordinal)
{
    double fraction = 1;

    if (ordinal < 0 || ordinal >= OOMPH_DEVICE_MAX || atomic_load(&forked))
        return fraction;
    pthread_mutex_lock(&process_lock);
    if (oomph_process.started)
        fraction = oomph_process.fractions[ordinal];
    pthread_mutex_unlock(&process_lock);
    return fraction;
}

oomph_status_t oomph_foresee(int ordinal, size_t min_bytes)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_lock_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    device->foresight.min_bytes = min_bytes;
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_enable_peer(int ordinal, int peer)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    if (peer < 0 || peer >= oomph_process.device_count)
        return oomph_fail(OOMPH_ERR_INVALID, "there is no device %d", peer);
    oomph_lock(device);
    uint64_t before = device->pages.devices;
    device->pages.devices |= 1ull << peer;
    for (const oomph_pool_t *p = device->pools; p != NULL && status == OOMPH_OK;
         p = p->next) {
        for (oomph_segment_t *s = p->heap.segments; s != NULL && status == OOMPH_OK;
             s = s->next)
            status = oomph_segment_set_access(s, &device->pages);
        for (oomph_segment_t *s = p->arena.segments; s != NULL && status == OOMPH_OK;
             s = s->next)
            status = oomph_segment_set_access(s, &device->pages);
    }
    if (status == OOMPH_OK)
        status = oomph_imports_set_access(device);
    if (status != OOMPH_OK)
        device->pages.devices = before;
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_copy(int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
                          oomph_stream_t stream)
{
    oomph_device_t *found;

    oomph_status_t status = oomph_device_get(device, &found);
    return status == OOMPH_OK
               ? oomph_process.driver->copy(device, to, from, bytes, stream)
               : status;
}

oomph_status_t oomph_event_passed(int device, oomph_event_t event, bool *passed)
{
    oomph_device_t *found;

    oomph_status_t status = oomph_device_get(device, &found);
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++)
        if (oomph_captures(i)) {
            *passed = false;
            return status;
        }
    return status == OOMPH_OK
               ? oomph_process.driver->event_passed(device, event, passed)
               : status;
}
