/* report.h - what the simulation tells about the program: a trace of its calls, its
 * misuses, and what it asked for in vain. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/session/cuda_api.h"

#include <stdarg.h>
#include <stdbool.h>

// Opens the trace that OOMPH_SIM_LOG names, if it is set.
void sim_trace_open_from_environment(void);

bool sim_trace_is_on(void);
void sim_trace_call(const char *function, CUresult result, const char *format,
                    va_list arguments);

// Around each call: what oomph_sim_refusal() tells is about the last call of this
// thread that was not supported, however late it is asked. A call that is not, for a
// reason of its own, makes it empty.
void sim_refusal_begin(void);
void sim_refusal_end(CUresult result);

void sim_report_reset(void);
