/* failure.h - calls are counted, and fail when a test asks for it. The caller holds the
 * driver's lock.
 *
 * Counting costs one look in a hash table of call sites: names differ by their
 * address, and compared as texts only when somebody asks.
 */
#pragma once
#include "libcuda/base/cuda_api.h"

// `function` is recognised by its address: a string literal, or __func__.
void sim_count_call(const char *function);
uint64_t sim_call_total(void); // of any

// Waits in calls that a test wants to be slow. The caller does not hold the lock.
void sim_dawdle(const char *function);

// The error that a test wants from this call, which has just been counted.
CUresult sim_injected_failure(const char *function);

void sim_failure_reset(void);
