/* sync.c - the lock of a device, and waiting without it.
 *
 * One thread waits for the GPU at a time; what others would wait for is then likely to
 * be done, so they wait for that thread.
 */
#include "core/device/sync.h"

#include <stdlib.h>

/* ---- The lock */

void oomph_unlock_and_report(oomph_device_t *device)
{
    oomph_notices_t notices = device->pages.notices;
    device->pages.notices = (oomph_notices_t){.wanted = notices.wanted};
    oomph_lock_give(&device->lock);
    for (size_t i = 0; i < notices.count && oomph_process.hooks.notice != NULL; i++)
        oomph_process.hooks.notice(&notices.list[i]);
    free(notices.list);
}

/* ---- Waiting */

static void *before_wait(void)
{
    void *(*hook)(void) = oomph_process.hooks.before_wait;
    return hook != NULL ? hook() : NULL;
}

static void after_wait(void *state)
{
    if (oomph_process.hooks.before_wait != NULL)
        oomph_process.hooks.after_wait(state);
}

void *oomph_step_aside(oomph_device_t *device)
{
    oomph_unlock(device);
    return before_wait();
}

void oomph_step_back(oomph_device_t *device, void *state)
{
    after_wait(state);
    oomph_lock(device);
}

static uint64_t count_waits(oomph_device_t *device)
{
    pthread_mutex_lock(&device->waits_lock);
    uint64_t count = device->waits;
    pthread_mutex_unlock(&device->waits_lock);
    return count;
}

// Waits until the thread that waits for the GPU has its result.
static void join_wait(oomph_device_t *device)
{
    uint64_t seen = count_waits(device);

    oomph_unlock(device);
    void *state = before_wait();
    pthread_mutex_lock(&device->waits_lock);
    while (device->waits == seen)
        pthread_cond_wait(&device->waited, &device->waits_lock);
    pthread_mutex_unlock(&device->waits_lock);
    after_wait(state);
    oomph_lock(device);
}

static void end_wait(oomph_device_t *device)
{
    device->waiting = false;
    pthread_mutex_lock(&device->waits_lock);
    device->waits++;
    pthread_cond_broadcast(&device->waited);
    pthread_mutex_unlock(&device->waits_lock);
}

bool oomph_wait_for(oomph_device_t *device, oomph_clock_t *clock)
{
    oomph_wait_t wait;

    if (device->waiting) {
        join_wait(device);
        return true;
    }
    if (clock == NULL ? !oomph_streams_drain_begin(&device->streams, &wait)
                      : !oomph_clock_wait_begin(&device->streams, clock, &wait))
        return false;
    device->waiting = true;
    device->stats.sync_count += wait.clock == NULL;
    oomph_unlock(device);
    void *state = before_wait();
    oomph_status_t status = oomph_clock_wait(&device->streams, &wait);
    after_wait(state);
    oomph_lock(device);
    oomph_clock_wait_end(&device->streams, &wait, status);
    end_wait(device);
    return status == OOMPH_OK;
}

/* ---- Waiting for all work */

static oomph_status_t drain_own(oomph_device_t *device)
{
    while (device->waiting)
        join_wait(device);
    if (oomph_streams_capture(&device->streams))
        return oomph_fail(OOMPH_ERR_STATE,
                          "no block can move while a CUDA graph is being captured or "
                          "tensors come from a MemPool");
    // What else can be wrong is the driver.
    return oomph_wait_for(device, NULL) ? OOMPH_OK : OOMPH_ERR_DRIVER;
}

static oomph_status_t drain_others(uint64_t ordinals)
{
    oomph_status_t status = OOMPH_OK;

    for (int i = 0; i < oomph_process.device_count && status == OOMPH_OK; i++) {
        oomph_device_t *other = (ordinals >> i & 1) != 0 ? oomph_device_peek(i) : NULL;
        if (other == NULL)
            continue; // nothing of PyTorch's runs on a device without memory
        oomph_lock(other);
        status = drain_own(other);
        oomph_unlock(other);
    }
    return status;
}

oomph_status_t oomph_drain(oomph_device_t *device)
{
    uint64_t others = device->pages.devices & ~(1ull << device->ordinal);
    oomph_status_t status = OOMPH_OK;

    if (others != 0) { // two locks are never held at once
        oomph_unlock(device);
        status = drain_others(others);
        oomph_lock(device);
    }
    return status == OOMPH_OK ? drain_own(device) : status;
}
