#include "libcuda/session/call.h"

#include "libcuda/engine/queue.h"
#include "libcuda/session/config.h"
#include "libcuda/session/failure.h"
#include "libcuda/session/report.h"
#include "libcuda/session/visible.h"
#include "sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ERROR_BYTES = 512 };

typedef enum phase {
    PHASE_NEW, // nobody called cuInit yet
    PHASE_INITIALISED,
    PHASE_FORKED, // the child of a process that used CUDA
    PHASE_DEINITIALISED,
} phase_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static phase_t phase;
static bool configured;      // sim_config is the card in use
static bool described;       // sim_config was given by oomph_sim_configure()
static bool description_bad; // OOMPH_SIMULATE is wrong
static char error_text[ERROR_BYTES];
static __thread const char *current_call = "";
static __thread bool callback_thread;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    if (phase == PHASE_INITIALISED)
        phase = PHASE_FORKED;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// Decides which card is simulated, at first use.
static void read_card(void)
{
    static pthread_once_t watching = PTHREAD_ONCE_INIT;
    const char *card = getenv("OOMPH_SIMULATE");

    pthread_once(&watching, watch_forks);
    configured = true;
    if (!described)
        sim_config = sim_config_default();
    if (!described && card != NULL)
        description_bad =
            !sim_config_parse(card, &sim_config, error_text, sizeof error_text);
    sim_visible_read(sim_config.device_count);
    sim_trace_open_from_environment();
}

bool sim_lock(void)
{
    pthread_mutex_lock(&lock);
    if (!configured)
        read_card();
    return !description_bad;
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

void sim_wake(void)
{
    pthread_cond_broadcast(&progress);
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

void sim_mark_initialised(void)
{
    phase = PHASE_INITIALISED;
}

void sim_mark_callback_thread(bool runs_them)
{
    callback_thread = runs_them;
}

const char *sim_current_call(void)
{
    return current_call;
}

CUresult sim_enter_uninitialised(const char *function)
{
    sim_dawdle(function);
    bool card_is_good = sim_lock();
    current_call = function;
    sim_refusal_begin();
    sim_count_call(function);
    if (!card_is_good)
        return CUDA_ERROR_INVALID_VALUE;
    if (phase == PHASE_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (phase == PHASE_DEINITIALISED)
        return CUDA_ERROR_DEINITIALIZED;
    if (callback_thread)
        return sim_misuse(CUDA_ERROR_NOT_PERMITTED, "called from a host function");
    CUresult failure = sim_injected_failure(function);
    if (failure == CUDA_SUCCESS && sim_config.tick_ns > 0)
        sim_queue_advance(sim_config.tick_ns);
    return failure;
}

CUresult sim_enter(const char *function)
{
    CUresult result = sim_enter_uninitialised(function);

    if (result == CUDA_SUCCESS && phase == PHASE_NEW)
        return CUDA_ERROR_NOT_INITIALIZED;
    return result;
}

CUresult sim_return(CUresult result)
{
    return sim_leave(result, "%s", "");
}

CUresult sim_leave(CUresult result, const char *format, ...)
{
    if (sim_trace_is_on()) {
        va_list arguments;
        va_start(arguments, format);
        sim_trace_call(current_call, result, format, arguments);
        va_end(arguments);
    }
    sim_refusal_end(result);
    pthread_mutex_unlock(&lock);
    return result;
}

int oomph_sim_configure(const char *card)
{
    bool good = false;

    pthread_mutex_lock(&lock);
    if (configured)
        snprintf(error_text, sizeof error_text,
                 "simulated card: the driver is in use; describe the card before that");
    else
        good = sim_config_parse(card, &sim_config, error_text, sizeof error_text);
    described = described || good;
    pthread_mutex_unlock(&lock);
    return good ? 0 : 1;
}

int oomph_sim_describe(const char *card, oomph_sim_card_t *found)
{
    sim_config_t config;

    pthread_mutex_lock(&lock);
    bool good = sim_config_parse(card, &config, error_text, sizeof error_text);
    pthread_mutex_unlock(&lock);
    if (!good)
        return 1;
    *found = (oomph_sim_card_t){
        .memory_bytes = config.capacity_bytes,
        .host_bytes = config.host_bytes,
        .device_count = config.device_count,
        .has_values = config.has_values,
        .has_rates = sim_has_rates(&config),
    };
    return 0;
}

const char *oomph_sim_error(void)
{
    return error_text;
}

void oomph_sim_deinit(void)
{
    sim_lock();
    phase = PHASE_DEINITIALISED;
    sim_unlock();
}

void sim_call_reset(void)
{
    phase = PHASE_NEW;
    configured = described = description_bad = false;
    error_text[0] = '\0';
}
