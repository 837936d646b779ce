#include "libcuda/session/failure.h"

#include "libcuda/base/lock.h"
#include "libcuda/session/session.h"
#include "sim.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FAILURES_MAX = 64, SITES = 1024, NAME_BYTES = 64 };

typedef struct failure {
    char function[NAME_BYTES]; // "": a call of any name
    uint64_t calls_until;      // 0: every call, for ever
    CUresult error;
} failure_t;

// A call site: one name, known by its address.
typedef struct site {
    const char *function;
    uint64_t count;
} site_t;

static failure_t failures[FAILURES_MAX];
static size_t failure_count;
static site_t sites[SITES]; // open addressing; there are about 250 functions
static uint64_t total_count;
static char slow_function[NAME_BYTES];
static _Atomic(uint64_t) slow_us; // 0: none is slow

// The length of a name without its version: cuMemAlloc_v2 is cuMemAlloc.
static size_t plain_length(const char *function)
{
    size_t length = strlen(function);

    if (length > 3 && function[length - 3] == '_' && function[length - 2] == 'v')
        return length - 3;
    return length;
}

static bool same_function(const char *a, const char *b)
{
    size_t length = plain_length(a);

    return length == plain_length(b) && memcmp(a, b, length) == 0;
}

void sim_count_call(const char *function)
{
    size_t place = ((uintptr_t)function >> 2) % SITES;

    while (sites[place].function != function && sites[place].function != NULL)
        place = (place + 1) % SITES;
    sites[place].function = function;
    sites[place].count++;
    total_count++;
}

uint64_t sim_call_total(void)
{
    return total_count;
}

// Whether this failure strikes now; counts the call if it is one that it waits for.
static bool strikes(failure_t *failure, const char *function)
{
    if (failure->function[0] != '\0' && !same_function(failure->function, function))
        return false;
    if (failure->calls_until > 0)
        failure->calls_until--;
    return failure->calls_until == 0;
}

CUresult sim_injected_failure(const char *function)
{
    CUresult error = CUDA_SUCCESS;

    for (size_t i = 0; i < failure_count;) {
        bool once = failures[i].calls_until > 0;
        bool now = strikes(&failures[i], function);
        if (now && error == CUDA_SUCCESS)
            error = failures[i].error;
        if (now && once)
            failures[i] = failures[--failure_count];
        else
            i++;
    }
    return error;
}

static int add_failure(const char *function, uint64_t nth, int error)
{
    int full = 1;

    sim_lock();
    if (failure_count < FAILURES_MAX) {
        failure_t *failure = &failures[failure_count++];
        snprintf(failure->function, sizeof failure->function, "%s", function);
        failure->calls_until = nth;
        failure->error = (CUresult)error;
        full = 0;
    }
    sim_unlock();
    return full;
}

void sim_dawdle(const char *function)
{
    uint64_t us = atomic_load_explicit(&slow_us, memory_order_relaxed);
    if (us == 0)
        return;
    sim_lock();
    bool is_slow = same_function(slow_function, function);
    sim_unlock();
    if (is_slow)
        usleep((useconds_t)us);
}

void oomph_sim_slow(const char *function, uint64_t us)
{
    sim_lock();
    snprintf(slow_function, sizeof slow_function, "%s", function);
    atomic_store(&slow_us, us);
    sim_unlock();
}

int oomph_sim_fail(const char *function, uint64_t nth, int error)
{
    return add_failure(function, nth, error);
}

void oomph_sim_fail_nth_call(uint64_t nth, int error)
{
    add_failure("", nth, error);
}

void oomph_sim_clear_failures(void)
{
    sim_lock();
    failure_count = 0;
    sim_unlock();
}

uint64_t oomph_sim_call_count(const char *function)
{
    uint64_t count = 0;

    sim_lock();
    for (size_t i = 0; function != NULL && i < SITES; i++) {
        if (sites[i].function != NULL && same_function(sites[i].function, function))
            count += sites[i].count;
    }
    if (function == NULL)
        count = total_count;
    sim_unlock();
    return count;
}

void sim_failure_reset(void)
{
    failure_count = 0;
    slow_us = 0;
    total_count = 0;
    memset(sites, 0, sizeof sites);
}
