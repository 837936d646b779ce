/* limits.c - how much of a card the program may take, and what it still has. */
#include "core/alloc/free.h"
#include "core/device/steal.h"

oomph_status_t oomph_set_fraction(int ordinal, double fraction)
{
    int device_count = 0;

    if (!(fraction >= 0 && fraction <= 1))
        return oomph_fail(OOMPH_ERR_INVALID, "a memory fraction must be in [0, 1]");
    oomph_status_t status = oomph_start(&device_count);
    if (status == OOMPH_OK)
        status = oomph_check_ordinal(ordinal);
    if (status != OOMPH_OK)
        return status;
    pthread_mutex_lock(&oomph_process.lock);
    oomph_process.fractions[ordinal] = fraction;
    oomph_device_t *device = atomic_load(&oomph_process.devices[ordinal]);
    if (device != NULL) {
        oomph_enter(device);
        device->fraction = fraction;
        oomph_device_limit(device);
        oomph_unlock(device);
    }
    pthread_mutex_unlock(&oomph_process.lock);
    return OOMPH_OK;
}

oomph_status_t oomph_shares_memory(int ordinal, bool *shares)
{
    int device_count = 0;

    oomph_status_t status = oomph_start(&device_count);
    if (status == OOMPH_OK)
        status = oomph_check_ordinal(ordinal);
    return status == OOMPH_OK ? oomph_process.driver->shares_memory(ordinal, shares)
                              : status;
}

double oomph_get_fraction(int ordinal)
{
    double fraction = 1;

    if (ordinal < 0 || ordinal >= OOMPH_DEVICE_MAX || oomph_is_forked())
        return fraction;
    pthread_mutex_lock(&oomph_process.lock);
    if (oomph_process.started)
        fraction = oomph_process.fractions[ordinal];
    pthread_mutex_unlock(&oomph_process.lock);
    return fraction;
}

oomph_status_t oomph_memory_info(int ordinal, size_t *free_bytes, size_t *total_bytes)
{
    oomph_device_t *device;
    size_t left, total;

    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status == OOMPH_OK)
        status = oomph_process.driver->memory_info(ordinal, &left, &total);
    if (status != OOMPH_OK)
        return status;
    oomph_enter(device);
    size_t limit = device->pages.limit_bytes;
    size_t held = oomph_pages_bytes(&device->pages, OOMPH_TIER_DEVICE);
    oomph_unlock(device);
    *free_bytes = oomph_min(left, limit - oomph_min(held, limit));
    *total_bytes = oomph_min(total, limit);
    return OOMPH_OK;
}

oomph_status_t oomph_largest_free(int ordinal, size_t *bytes)
{
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE};
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    // Every free page can be part of one block.
    oomph_survey_t survey = oomph_steal_survey(device, &reach);
    size_t most = device->total_bytes / device->pages.page_bytes;
    size_t count = survey.now + survey.later +
                   oomph_pages_available(&device->pages, OOMPH_TIER_DEVICE, most,
                                         OOMPH_RESERVE_WHOLE);
    *bytes = count * device->pages.page_bytes;
    oomph_unlock(device);
    return OOMPH_OK;
}

oomph_status_t oomph_probe_host(int ordinal, oomph_host_kind_t *kind)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    *kind = oomph_device_host_kind(device);
    oomph_unlock(device);
    return OOMPH_OK;
}

const char *oomph_host_kind_name(oomph_host_kind_t kind)
{
    static const char *const names[] = {"not tried", "NUMA pages", "host pages",
                                        "pinned blocks", "none"};

    return kind >= OOMPH_HOST_AUTO && kind <= OOMPH_HOST_OFF ? names[kind] : "unknown";
}
