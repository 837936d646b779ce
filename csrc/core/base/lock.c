/* lock.c - waiting for a lock: spin, then yield, then sleep. */
#include "core/base/lock.h"

#include <sched.h>
#include <time.h>

enum {
    SPINS = 128,      // looks before others are let run
    YIELDS = 64,      // times that others are let run before sleeping
    SLEEP_NS = 20000, // at a time
};

static void pause_briefly(int looks)
{
    static const struct timespec nap = {.tv_nsec = SLEEP_NS};

    if (looks < SPINS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    if (looks < SPINS + YIELDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

void oomph_lock_wait(oomph_lock_t *lock)
{
    for (int looks = 0;; looks += looks < SPINS + YIELDS) {
        pause_briefly(looks);
        if (!atomic_load_explicit(&lock->taken, memory_order_relaxed) &&
            oomph_lock_try(lock))
            return;
    }
}
