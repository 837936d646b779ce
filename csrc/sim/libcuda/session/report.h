/* report.h - what the simulation reports about the program: a trace of its calls, its
 * misuses, and what it asked for in vain. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "sim.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Around each call: what is reported in between is about `function`.
// oomph_sim_refusal() gives the reason of this thread's last call that was not
// supported; "" if that call reported none.
void sim_report_begin(const char *function);
void sim_report_end(CUresult result);

// The call that is being made; kept by operations, to name the culprit later.
const char *sim_current_call(void);

// ---- the trace

// Traces to the file `path` from now on; NULL: no longer. False if it cannot be opened.
bool sim_trace_open(const char *path);
// Opens the trace that OOMPH_SIM_LOG names, if it is set.
void sim_trace_open_from_environment(void);

bool sim_trace_is_on(void);
void sim_trace_call(CUresult result, const char *format, va_list arguments);
// What an operator costs, which benchmarks/published/fit.py reads.
void sim_trace_cost(const oomph_sim_cost_t *what);
// That the host has done its part of one.
void sim_trace_dispatch(void);

// ---- misuses, and what is not supported

// Records a misuse of the current call, described like printf, and returns `result`.
CUresult sim_misuse(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t sim_misuse_count(void);

// Records that `function` is not supported.
void sim_unsupported(const char *function);
uint64_t sim_unsupported_count(void);

// Records that a kernel was launched that nothing computes.
void sim_refuse_kernel(const char *name);

// The last texts of each kind: `ago` 0 is the latest; NULL if there is none.
const char *sim_misuse_ago(size_t ago);
const char *sim_unsupported_ago(size_t ago);

void sim_report_reset(void);
