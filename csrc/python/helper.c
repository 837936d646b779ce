/* helper.c - a thread that runs Python for one that needs memory.
 *
 * Two things free memory that only Python knows of: tensors in reference cycles keep
 * theirs until Python's collector runs, and what autograd saved is not used for a
 * while. The thread that needs memory must not do that itself: destructors and
 * finalizers would run in the middle of an operator, which may hold locks that they
 * want. So a thread of its own does it, started when it is first needed, while the
 * other waits without the GIL, and not for ever: whoever has the GIL may wait for a
 * lock that the waiting thread holds. After that time it goes on without, and what the
 * helper still frees, it frees later.
 */
#include "python/helper.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum {
    // What the thread may take to get the GIL, and then for its job.
    PATIENCE_MS = 2000,
    LAST_PATIENCE_MS = 10000, // before an error
    END_PATIENCE_MS = 2000,   // when the process ends
};

typedef enum kind { COLLECT, MAKE_ROOM, KINDS } kind_t;

typedef struct job {
    uint64_t asked, begun, done; // numbers of requests
    size_t bytes;                // freed by the one that was done last
} job_t;

static PyObject *run_collector; // gc.collect, or what took its place
static PyObject *room_maker;    // called with (device, bytes); guarded by the GIL
static atomic_bool has_room_maker;

// Everything here is guarded by the lock, which is not held while the GIL is taken.
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    _Atomic(pid_t) process; // whose thread it is; 0: none was started
    job_t jobs[KINDS];
    int device;  // that needs room,
    size_t want; // and how much
    bool lives, stopping;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};
// Who asks for room, until it has an answer; before the lock.
static pthread_mutex_t room_turn = PTHREAD_MUTEX_INITIALIZER;

/* ---- The thread */

static size_t collect(void)
{
    oomph_collection_begin();
    PyObject *collector = Py_NewRef(run_collector);
    PyObject *count = PyObject_CallNoArgs(collector);
    size_t bytes = oomph_collection_end();

    if (count == NULL)
        PyErr_WriteUnraisable(collector);
    Py_XDECREF(count);
    Py_DECREF(collector);
    return bytes;
}

static size_t send_away(int device, size_t want)
{
    PyObject *maker = Py_XNewRef(room_maker);

    if (maker == NULL)
        return 0;
    PyObject *freed = PyObject_CallFunction(maker, "in", device, (Py_ssize_t)want);
    size_t bytes = freed != NULL ? PyLong_AsSize_t(freed) : 0;
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(maker);
        bytes = 0;
    }
    Py_XDECREF(freed);
    Py_DECREF(maker);
    return bytes;
}

// Gives the bytes that were freed.
static size_t run(kind_t kind)
{
    PyGILState_STATE gil = PyGILState_Ensure();

    pthread_mutex_lock(&state.lock);
    state.jobs[kind].begun = state.jobs[kind].asked;
    int device = state.device;
    size_t want = state.want;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
    size_t bytes = kind == COLLECT ? collect() : send_away(device, want);
    PyGILState_Release(gil);
    return bytes;
}

// The job that is asked for; KINDS: none is.
static kind_t next_job(void)
{
    kind_t kind = COLLECT;

    while (kind < KINDS && state.jobs[kind].asked == state.jobs[kind].done)
        kind++;
    return kind;
}

static void *work(void *unused)
{
    pthread_mutex_lock(&state.lock);
    while (!state.stopping) {
        kind_t kind = next_job();
        if (kind == KINDS) {
            pthread_cond_wait(&state.changed, &state.lock);
            continue;
        }
        pthread_mutex_unlock(&state.lock);
        size_t bytes = run(kind);
        pthread_mutex_lock(&state.lock);
        state.jobs[kind].bytes = bytes;
        state.jobs[kind].done = state.jobs[kind].begun;
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
static bool ask(kind_t kind, long ms, size_t *bytes)
{
    bool own = state.lives && pthread_equal(state.thread, pthread_self());
    job_t *job = &state.jobs[kind];

    // A finalizer that wants memory must not wait for the helper that runs it.
    if (own || state.stopping || (!state.lives && !start()))
        return false;
    uint64_t number = ++job->asked;
    pthread_cond_broadcast(&state.changed);
    bool done =
        wait_until(&job->begun, number, ms) && wait_until(&job->done, number, ms);
    *bytes = done ? job->bytes : 0;
    return done;
}

bool oomph_collect_garbage(bool last, size_t *bytes)
{
    PyThreadState *gil = PyGILState_Check() ? PyEval_SaveThread() : NULL;

    pthread_mutex_lock(&state.lock);
    bool done = ask(COLLECT, last ? LAST_PATIENCE_MS : PATIENCE_MS, bytes);
    pthread_mutex_unlock(&state.lock);
    if (gil != NULL)
        PyEval_RestoreThread(gil);
    return done;
}

size_t oomph_make_room(int device, size_t want)
{
    size_t bytes = 0;

    if (!atomic_load(&has_room_maker))
        return 0;
    PyThreadState *gil = PyGILState_Check() ? PyEval_SaveThread() : NULL;
    pthread_mutex_lock(&room_turn);
    pthread_mutex_lock(&state.lock);
    state.device = device;
    state.want = want;
    ask(MAKE_ROOM, PATIENCE_MS, &bytes);
    pthread_mutex_unlock(&state.lock);
    pthread_mutex_unlock(&room_turn);
    if (gil != NULL)
        PyEval_RestoreThread(gil);
    return bytes;
}

static PyObject *set_collector(PyObject *Py_UNUSED(module), PyObject *callable)
{
    oomph_exchange(&run_collector, Py_NewRef(callable));
    Py_RETURN_NONE;
}

static PyObject *set_room_maker(PyObject *Py_UNUSED(module), PyObject *callable)
{
    atomic_store(&has_room_maker, !Py_IsNone(callable));
    oomph_exchange(&room_maker, Py_IsNone(callable) ? NULL : Py_NewRef(callable));
    Py_RETURN_NONE;
}

PyMethodDef oomph_helper_methods[] = {
    {"set_collector", set_collector, METH_O,
     "Is called in the place of gc.collect() when memory is short."},
    {"set_room_maker", set_room_maker, METH_O,
     "A callable that sends (device, bytes) to the host and gives how many; or None."},
    {NULL, NULL, 0, NULL},
};

/* ---- Start and end */

bool oomph_helper_init(void)
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

void oomph_helper_stop(void)
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
