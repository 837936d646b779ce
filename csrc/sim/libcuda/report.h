/* report.h - what the simulation tells about the program: a trace of its calls, its
 * misuses, and what it asked for in vain. The caller holds the driver's lock.
 */
#pragma once
#include "cuda_api.h"

#include <stdarg.h>
#include <stdbool.h>

// Opens the trace that OOMPH_SIM_LOG names, if it is set.
void sim_trace_open_from_environment(void);

bool sim_trace_is_on(void);
void sim_trace_call(const char *function, CUresult result, const char *format,
                    va_list arguments);

// Makes oomph_sim_refusal() empty: the next call of this thread begins.
void sim_clear_refusal(void);

void sim_report_reset(void);
