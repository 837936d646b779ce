/* garbage.c - Python's unreachable objects, collected when memory is short.
 *
 * Tensors in reference cycles hold memory until Python's collector runs, which may be
 * long after the last use. The thread that needs memory must not run it: destructors
 * and finalizers would run in the middle of an operator, which may hold locks that they
 * want. So a thread of its own runs it, started when it is first needed, while the
 * other waits without the GIL, and not for ever: whoever has the GIL may wait for a
 * lock that the waiting thread holds. After that time it goes on without, and what the
 * collector still frees, it frees later.
 */
#include "python/module.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum {
    // What the thread may take to get the GIL, and then to collect.
    PATIENCE_MS = 2000,
    LAST_PATIENCE_MS = 10000, // before an error
    END_PATIENCE_MS = 2000,   // when the process ends
};

static PyObject *run_collector; // gc.collect, as it was at import

// Everything here is guarded by the lock, which is not held while the GIL is taken.
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    _Atomic(pid_t) process;      // whose thread it is; 0: none was started
    uint64_t asked, begun, done; // numbers of requests
    size_t bytes;                // freed by the collection that was done last
    bool lives, stopping;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- The thread */

// Gives the bytes that were freed.
static size_t collect_now(void)
{
    PyGILState_STATE gil = PyGILState_Ensure();

    pthread_mutex_lock(&state.lock);
    state.begun = state.asked;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
    oomph_collection_begin();
    PyObject *count = PyObject_CallNoArgs(run_collector);
    size_t bytes = oomph_collection_end();
    if (count == NULL)
        PyErr_WriteUnraisable(run_collector);
    Py_XDECREF(count);
    PyGILState_Release(gil);
    return bytes;
}

static void *work(void *unused)
{
    pthread_mutex_lock(&state.lock);
    while (!state.stopping) {
        if (state.asked == state.done) {
            pthread_cond_wait(&state.changed, &state.lock);
            continue;
        }
        pthread_mutex_unlock(&state.lock);
        size_t bytes = collect_now();
        pthread_mutex_lock(&state.lock);
        state.bytes = bytes;
        state.done = state.begun;
        pthread_cond_broadcast(&state.changed);
    }
    state.lives = false;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
    return unused;
}

// The caller holds the lock. Signals are for the program's own threads.
static bool start(void)
{
    sigset_t all, had;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &had);
    state.lives = pthread_create(&state.thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &had, NULL);
    if (state.lives)
        pthread_detach(state.thread);
    atomic_store(&state.process, getpid());
    return state.lives;
}

/* ---- Asking it */

static struct timespec in(long ms)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += ms / 1000;
    time.tv_nsec += ms % 1000 * 1000000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

// Waits until the thread has got so far, with the lock. False if that takes too long.
static bool wait_until(const uint64_t *reached, uint64_t number, long ms)
{
    struct timespec end = in(ms);
    int error = 0;

    while (*reached < number && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&state.changed, &state.lock, &end);
    return *reached >= number;
}

// The caller holds the lock, and no GIL.
static bool ask(bool last, size_t *bytes)
{
    bool own = state.lives && pthread_equal(state.thread, pthread_self());

    // A finalizer that wants memory must not wait for the collector that runs it.
    if (own || state.stopping || (!state.lives && !start()))
        return false;
    long ms = last ? LAST_PATIENCE_MS : PATIENCE_MS;
    uint64_t number = ++state.asked;
    pthread_cond_broadcast(&state.changed);
    bool done =
        wait_until(&state.begun, number, ms) && wait_until(&state.done, number, ms);
    *bytes = done ? state.bytes : 0;
    return done;
}

bool oomph_collect_garbage(bool last, size_t *bytes)
{
    PyThreadState *gil = PyGILState_Check() ? PyEval_SaveThread() : NULL;

    pthread_mutex_lock(&state.lock);
    bool done = ask(last, bytes);
    pthread_mutex_unlock(&state.lock);
    if (gil != NULL)
        PyEval_RestoreThread(gil);
    return done;
}

/* ---- Start and end */

bool oomph_garbage_init(void)
{
    pthread_condattr_t clock;

    if (run_collector != NULL)
        return true;
    PyObject *gc = PyImport_ImportModule("gc");
    if (gc != NULL)
        run_collector = PyObject_GetAttrString(gc, "collect");
    Py_XDECREF(gc);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&state.changed, &clock);
    pthread_condattr_destroy(&clock);
    return run_collector != NULL;
}

void oomph_garbage_stop(void)
{
    pid_t process = atomic_load(&state.process);
    struct timespec end = in(END_PATIENCE_MS);
    int error = 0;

    if (process != 0 && process != getpid())
        return; // a forked child, which has no such thread
    pthread_mutex_lock(&state.lock);
    state.stopping = true;
    pthread_cond_broadcast(&state.changed);
    while (state.lives && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&state.changed, &state.lock, &end);
    pthread_mutex_unlock(&state.lock);
}
