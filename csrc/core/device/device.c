/* device.c - opening a device, its limits, and what kind of host memory it has; at the
 * end, stopping what works in the background for it (oomph/start.h).
 */
#include "core/device/device.h"

#include <stdlib.h>

#define RESERVE_MIN ((size_t)256 << 20) // bytes left to libraries by `reserve: auto`
enum {
    RESERVE_DIVISOR = 50, // and at least a 50th of the card
    PAGES_MIN = 2048,     // that a card has at least, if pages are made larger
};

void oomph_device_limit(oomph_device_t *device)
{
    const oomph_config_t *config = &oomph_process.config;
    double total = (double)device->total_bytes;
    size_t limit = SIZE_MAX;

    if (config->device_limit_bytes != 0)
        limit = config->device_limit_bytes;
    if (config->device_limit_fraction > 0)
        limit = (size_t)(total * config->device_limit_fraction);
    if (device->fraction < 1)
        limit = oomph_min(limit, (size_t)(total * device->fraction));
    device->pages.limit_bytes = limit;
}

static bool offloads(bool shares_memory)
{
    oomph_offload_t offload = oomph_process.config.offload;

    return offload == OOMPH_OFFLOAD_AUTO ? !shares_memory
                                         : offload != OOMPH_OFFLOAD_OFF;
}

bool oomph_device_offloads(const oomph_device_t *device)
{
    return offloads(device->shares_memory);
}

// The granularity; larger if host memory up to its limit takes more mappings than the
// process may have.
static size_t choose_page(const oomph_device_info_t *info, bool shares_memory)
{
    const oomph_config_t *config = &oomph_process.config;
    size_t bytes = info->page_bytes;

    if (config->host_page_max == 0 || !offloads(shares_memory) ||
        config->host_kind >= OOMPH_HOST_PINNED)
        return bytes;
    while (config->host_limit_bytes / bytes > config->host_page_max &&
           info->total_bytes / (2 * bytes) >= PAGES_MIN)
        bytes *= 2;
    return bytes;
}

static oomph_status_t check_sizes(int ordinal, const oomph_device_info_t *info,
                                  bool shares_memory, size_t *page_bytes)
{
    const oomph_config_t *config = &oomph_process.config;

    *page_bytes =
        config->page_bytes == 0 ? choose_page(info, shares_memory) : config->page_bytes;
    if (*page_bytes % info->page_bytes != 0 || *page_bytes > OOMPH_CHUNK_BYTES)
        return oomph_fail(
            OOMPH_ERR_INVALID,
            "page: %zu bytes is not a multiple of the %zu bytes that device "
            "%d maps at once, or more than 1 GiB",
            *page_bytes, info->page_bytes, ordinal);
    if (config->device_limit_bytes > info->total_bytes)
        return oomph_fail(
            OOMPH_ERR_INVALID,
            "device_limit: %.2f GiB is more than the %.2f GiB of device %d; give less, "
            "or a fraction such as 0.9",
            (double)config->device_limit_bytes / (1 << 30),
            (double)info->total_bytes / (1 << 30), ordinal);
    return OOMPH_OK;
}

static size_t reserve_of(const oomph_device_info_t *info)
{
    if (oomph_process.config.reserve_bytes != OOMPH_AUTO)
        return (size_t)oomph_process.config.reserve_bytes;
    return oomph_max(RESERVE_MIN, info->total_bytes / RESERVE_DIVISOR);
}

static oomph_status_t open_device(int ordinal, oomph_device_t **out)
{
    oomph_device_info_t info;
    bool shares_memory;
    size_t page_bytes;

    oomph_status_t status =
        oomph_process.driver->shares_memory(ordinal, &shares_memory);
    if (status == OOMPH_OK)
        status = oomph_process.driver->open(ordinal, &info);
    if (status == OOMPH_OK)
        status = check_sizes(ordinal, &info, shares_memory, &page_bytes);
    if (status != OOMPH_OK)
        return status;
    oomph_device_t *device = calloc(1, sizeof *device);
    if (device == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for device %d", ordinal);
    pthread_mutex_init(&device->waits_lock, NULL);
    pthread_cond_init(&device->waited, NULL);
    device->ordinal = ordinal;
    device->total_bytes = info.total_bytes;
    device->shares_memory = shares_memory;
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

oomph_status_t oomph_device_open(int ordinal, oomph_device_t **device)
{
    int device_count = 0;

    oomph_status_t status = oomph_start(&device_count);
    if (status != OOMPH_OK)
        return status;
    status = oomph_check_ordinal(ordinal);
    if (status != OOMPH_OK)
        return status;
    pthread_mutex_lock(&oomph_process.lock);
    *device = atomic_load(&oomph_process.devices[ordinal]);
    if (*device == NULL) {
        status = open_device(ordinal, device);
        if (status == OOMPH_OK)
            atomic_store_explicit(&oomph_process.devices[ordinal], *device,
                                  memory_order_release);
    }
    pthread_mutex_unlock(&oomph_process.lock);
    return status;
}

size_t oomph_device_room(oomph_device_t *device)
{
    oomph_pages_t *pages = &device->pages;
    const oomph_page_stack_t *stack = &pages->tiers[OOMPH_TIER_DEVICE];
    size_t most = device->total_bytes / pages->page_bytes;

    return (stack->count - stack->spare_count +
            oomph_pages_available(pages, OOMPH_TIER_DEVICE, most,
                                  OOMPH_RESERVE_WHOLE)) *
           pages->page_bytes;
}

void oomph_stop(void)
{
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++) {
        oomph_device_t *device = oomph_device_peek(i);
        if (device != NULL)
            oomph_ahead_stop(&device->ahead);
    }
}
