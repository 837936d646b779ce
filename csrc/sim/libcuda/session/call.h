/* call.h - what every driver call does first and last.
 *
 *     CUresult result = sim_enter("cuMemRelease");
 *     if (result == CUDA_SUCCESS)
 *         result = release(handle);
 *     return sim_leave(result, "%#llx", handle);
 *
 * Between the two the driver's lock is held: all state of the simulation is guarded by
 * this one lock.
 */
#pragma once
#include "libcuda/session/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

// Takes the lock, reads the card at first use, counts the call, moves the clock, and
// returns the error that the call must end with, if any. sim_leave() follows in any
// case.
CUresult sim_enter(const char *function);

// As sim_enter(), for the calls that work before cuInit().
CUresult sim_enter_uninitialised(const char *function);

// Traces the call with its arguments, gives the lock back, returns `result`.
CUresult sim_leave(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// sim_leave() for a call without arguments worth tracing.
CUresult sim_return(CUresult result);

// For the control interface: the lock and the card, nothing else. False if the card's
// description is wrong; the lock is held all the same.
bool sim_lock(void);
void sim_unlock(void);

// Gives the lock away while waiting for something that other threads do, at most
// `milliseconds`. sim_wake() ends the wait.
void sim_wait(unsigned milliseconds);
void sim_wake(void);

// Has a thread of its own run a function that ends when it finds no more to do, unless
// one does already. The function clears `is_running`, with the lock, which the caller
// holds too. False: there can be no thread.
bool sim_start_thread(bool *is_running, void *(*run)(void *));

// After this, calls no longer return CUDA_ERROR_NOT_INITIALIZED.
void sim_mark_initialised(void);

// Whether the thread runs host functions of streams: its driver calls are not
// permitted.
void sim_mark_callback_thread(bool runs_them);

// The call that is being made; kept by operations, to name the culprit later.
const char *sim_current_call(void);

// Records a misuse of the current call, described like printf, and returns `result`.
CUresult sim_misuse(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Records that `function` is not supported.
void sim_unsupported(const char *function);

// Records that a kernel was launched that nothing computes.
void sim_refuse_kernel(const char *name);

uint64_t sim_misuse_count(void);

void sim_call_reset(void);
