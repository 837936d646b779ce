#include "libcuda/execution/call.h"

#include "libcuda/base/lock.h"
#include "libcuda/engine/effects.h"
#include "libcuda/engine/queue.h"
#include "libcuda/session/config.h"
#include "libcuda/session/failure.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"

#include <stdarg.h>
#include <string.h>

CUresult sim_enter_uninitialised(const char *function)
{
    sim_dawdle(function);
    bool card_is_good = sim_lock();
    sim_report_begin(function);
    sim_count_call(function);
    if (!card_is_good)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_phase() == SIM_PHASE_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sim_phase() == SIM_PHASE_DEINITIALISED)
        return CUDA_ERROR_DEINITIALIZED;
    if (sim_callback_is_this_thread())
        return sim_misuse(CUDA_ERROR_NOT_PERMITTED, "called from a host function");
    CUresult failure = sim_injected_failure(function);
    if (failure == CUDA_SUCCESS && sim_config.tick_ns > 0)
        sim_queue_advance(sim_config.tick_ns);
    return failure;
}

CUresult sim_enter(const char *function)
{
    if (sim_awaits_use() && strcmp(function, "cuDeviceGetCount") != 0)
        sim_begin_use();
    CUresult result = sim_enter_uninitialised(function);

    if (result == CUDA_SUCCESS && sim_phase() == SIM_PHASE_NEW)
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
        sim_trace_call(result, format, arguments);
        va_end(arguments);
    }
    sim_report_end(result);
    sim_unlock();
    return result;
}
