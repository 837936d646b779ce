/* call.h - what every driver call does first and last.
 *
 *     return SIM_CALL(release(handle), "%#llx", handle);
 *
 * or the same in steps:
 *
 *     CUresult result = sim_enter(__func__);
 *     if (result == CUDA_SUCCESS)
 *         result = release(handle);
 *     return sim_leave(result, "%#llx", handle);
 *
 * Between the two the driver's lock is held: all state of the simulation is guarded by
 * this one lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"

#include <stdbool.h>

// Takes the lock, reads the card at first use, counts the call, moves the clock, and
// returns the error that the call must end with, if any. sim_leave() follows in any
// case.
CUresult sim_enter(const char *function);

// As sim_enter(), with INVALID_VALUE if arguments are missing or not allowed.
static inline CUresult sim_enter_checked(const char *function, bool arguments_are_good)
{
    CUresult result = sim_enter(function);

    return result == CUDA_SUCCESS && !arguments_are_good ? CUDA_ERROR_INVALID_VALUE
                                                         : result;
}

// As sim_enter(), for the calls that work before cuInit().
CUresult sim_enter_uninitialised(const char *function);

// Traces the call with its arguments, gives the lock back, returns `result`.
CUresult sim_leave(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// A whole call: `work` gives its result, the rest says what to trace and may use
// `result`. A macro, as both wait for the lock.
#define SIM_CALL(work, ...)                                                            \
    __extension__({                                                                    \
        CUresult result = sim_enter(__func__);                                         \
        if (result == CUDA_SUCCESS)                                                    \
            result = (work);                                                           \
        sim_leave(result, __VA_ARGS__);                                                \
    })

// sim_leave() for a call without arguments worth tracing.
CUresult sim_return(CUresult result);
