/* lock.h - the lock of a device.
 *
 * It is taken twice for every block that comes and goes, held for tens of nanoseconds,
 * and hardly ever met taken. So it is one word, taken by one atomic exchange and given
 * by a plain store, without a call: with a mutex, half of the time of a cached block
 * went into locking. A thread that finds it taken looks again for a while, then yields,
 * then sleeps for short times: the driver may be mapping pages under it.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

typedef struct oomph_lock {
    atomic_bool taken;
} oomph_lock_t;

static inline bool oomph_lock_try(oomph_lock_t *lock)
{
    return !atomic_exchange_explicit(&lock->taken, true, memory_order_acquire);
}

void oomph_lock_wait(oomph_lock_t *lock);

static inline void oomph_lock_take(oomph_lock_t *lock)
{
    if (!oomph_lock_try(lock))
        oomph_lock_wait(lock);
}

static inline void oomph_lock_give(oomph_lock_t *lock)
{
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}
