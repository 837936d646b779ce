/* control.c - the control interface: the clock, the statistics, what is reported, and
 * the way back to the start.
 */
#include "libcuda/base/clock.h"
#include "libcuda/base/lock.h"
#include "libcuda/engine/effects.h"
#include "libcuda/engine/engine.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/value.h"
#include "libcuda/engine/wait.h"
#include "libcuda/execution/module.h"
#include "libcuda/execution/stream.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/device.h"
#include "libcuda/memory/foreign.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/pinned.h"
#include "libcuda/memory/shadow.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/event.h"
#include "libcuda/objects/graph.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/user.h"
#include "libcuda/session/config.h"
#include "libcuda/session/failure.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"
#include "runtime.h"
#include "sim.h"

uint64_t oomph_sim_now_ns(void)
{
    sim_lock();
    uint64_t now_ns = sim_clock_ns();
    sim_unlock();
    return now_ns;
}

void oomph_sim_advance(uint64_t ns)
{
    sim_lock();
    sim_queue_advance(ns);
    while (sim_callback_count() > 0)
        sim_wait(1);
    sim_unlock();
}

void oomph_sim_hold(CUstream handle)
{
    CUstream stream;

    sim_lock();
    if (sim_stream_find_any(handle, &stream) == CUDA_SUCCESS)
        sim_queue_hold(stream);
    sim_unlock();
}

void oomph_sim_release(CUstream handle)
{
    CUstream stream;

    sim_lock();
    if (sim_stream_find_any(handle, &stream) == CUDA_SUCCESS)
        sim_queue_release(stream);
    sim_unlock();
}

static void fill(oomph_sim_stats_t *stats, const struct CUctx_st *device)
{
    *stats = (oomph_sim_stats_t){
        .capacity_bytes = sim_config.capacity_bytes,
        .used_bytes = device->used_bytes,
        .peak_used_bytes = device->peak_used_bytes,
        .context_bytes = device->retain_count > 0 ? sim_config.context_bytes : 0,
        .host_bytes = sim_host_used_bytes(SIM_HOST_LOCATED),
        .peak_host_bytes = sim_host_peak_bytes(SIM_HOST_LOCATED),
        .pinned_bytes = sim_host_used_bytes(SIM_HOST_PINNED),
        .peak_pinned_bytes = sim_host_peak_bytes(SIM_HOST_PINNED),
        .handle_count = sim_handle_count(),
        .mapping_count = sim_space_mapping_count(),
        .reservation_count = sim_space_reservation_count(),
        .pending_count = sim_pending_count(),
        .executed_count = sim_pending_executed_count(),
        .h2d_bytes = sim_copied_bytes(SIM_H2D),
        .d2h_bytes = sim_copied_bytes(SIM_D2H),
        .d2d_bytes = sim_copied_bytes(SIM_D2D),
        .misuse_count = sim_misuse_count(),
        .held_waits = sim_queue_held_waits(),
    };
}

int oomph_sim_stats(int device, oomph_sim_stats_t *stats)
{
    sim_lock();
    CUcontext found = sim_device(device);
    sim_handle_collect();
    if (found != NULL)
        fill(stats, found);
    sim_unlock();
    return found != NULL ? 0 : 1;
}

int oomph_sim_usage(int device, oomph_sim_usage_t *usage)
{
    sim_lock();
    bool found = sim_device(device) != NULL;
    if (found)
        sim_engine_usage(device, usage);
    sim_unlock();
    return found ? 0 : 1;
}

void oomph_sim_reset(void)
{
    sim_lock();
    sim_queue_reset();
    sim_value_reset();
    sim_shadow_forget_all();
    sim_capture_reset();
    sim_graph_reset();
    sim_user_reset();
    sim_event_reset();
    sim_wait_reset();
    sim_mark_reset();
    sim_module_reset();
    sim_stream_reset();
    sim_pinned_reset();
    sim_space_reset();
    sim_handle_reset();
    sim_foreign_reset();
    sim_address_reset();
    sim_engine_reset();
    sim_effects_reset();
    sim_device_reset();
    sim_failure_reset();
    sim_report_reset();
    sim_session_reset();
    sim_unlock();
}

// ---- reports

int oomph_sim_log(const char *path)
{
    sim_lock();
    bool is_open = sim_trace_open(path);
    sim_unlock();
    return is_open ? 0 : 1;
}

void oomph_sim_note_unsupported(const char *function)
{
    sim_lock();
    sim_unsupported(function);
    sim_unlock();
}

const char *oomph_sim_misuse(size_t ago)
{
    sim_lock();
    const char *text = sim_misuse_ago(ago);
    sim_unlock();
    return text;
}

const char *oomph_sim_unsupported(size_t ago)
{
    sim_lock();
    const char *text = sim_unsupported_ago(ago);
    sim_unlock();
    return text;
}

uint64_t oomph_sim_unsupported_count(void)
{
    sim_lock();
    uint64_t count = sim_unsupported_count();
    sim_unlock();
    return count;
}
