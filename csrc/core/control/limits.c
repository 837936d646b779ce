/* limits.c - how much of a card the program may take. */
#include "core/alloc/free.h"

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
