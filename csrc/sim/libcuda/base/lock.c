#include "libcuda/base/lock.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;

void sim_take_lock(void)
{
    pthread_mutex_lock(&lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void sim_wait(unsigned milliseconds)
{
    struct timespec until;
    const long second_ns = 1000000000;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / second_ns;
    until.tv_nsec %= second_ns;
    pthread_cond_timedwait(&progress, &lock, &until);
}

void sim_end_wait(void)
{
    pthread_cond_broadcast(&progress);
}

void sim_yield(void)
{
    sim_unlock();
    sched_yield();
    sim_take_lock();
}

bool sim_start_thread(bool *is_running, void *(*run)(void *))
{
    pthread_t thread;

    if (*is_running)
        return true;
    *is_running = pthread_create(&thread, NULL, run, NULL) == 0;
    if (*is_running)
        pthread_detach(thread);
    return *is_running;
}
