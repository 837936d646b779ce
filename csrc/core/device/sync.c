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

bool oomph_drain(oomph_device_t *device)
{
    while (device->waiting)
        join_wait(device);
    return oomph_wait_for(device, NULL);
}
