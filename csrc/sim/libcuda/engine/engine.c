#include "libcuda/engine/engine.h"

#include "libcuda/base/clock.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/operator.h"
#include "libcuda/session/config.h"
#include "sim.h"

#include <string.h>

enum { UNKNOWN_KERNEL_NS = 5000, SM_THREADS = 2048 };

static const double UNKNOWN_BYTES_PER_S = 1e12; // copied or filled within a device

// Keeps its own time: work takes turns.
typedef struct engine {
    uint64_t free_ns, busy_ns, bytes;
} engine_t;

typedef struct engines {
    engine_t compute, to_device, to_host;
    uint64_t operator_count;
    double flops, device_bytes;
} engines_t;

static engines_t engines[SIM_DEVICES_MAX];

// Bytes that work moves, by where they lie.
typedef struct moved {
    double device, from_host, to_host;
} moved_t;

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t duration_ns(double amount, double per_s)
{
    return (uint64_t)(amount * 1e9 / per_s);
}

static uint64_t link_ns(double bytes)
{
    return duration_ns(bytes, sim_config.link_bytes_per_s);
}

// Keeps the engine busy as soon as it is free. Gives the time when it ends.
static uint64_t take(engine_t *engine, uint64_t from_ns, uint64_t duration)
{
    engine->free_ns = later(engine->free_ns, from_ns) + duration;
    engine->busy_ns += duration;
    return engine->free_ns;
}

// ---- kernels

static double cycles_per_s(void) // of all multiprocessors
{
    return sim_config.rates.cycles_per_s * sim_config.sm_count;
}

// The loads that multiprocessors can have on the way are too few for the fastest
// memory.
static double device_bytes_per_s(void)
{
    double memory = sim_config.rates.bytes_per_s * sim_config.rates.bytes_share;
    double loads = sim_config.rates.sm_bytes * cycles_per_s();

    return memory < loads ? memory : loads;
}

// The share of an operator's threads that are in work at once.
static double share_in_work(const oomph_sim_launched_t *launched)
{
    const unsigned block = launched->block_threads;

    if (launched->threads == 0)
        return 1;
    double blocks = block < SM_THREADS ? SM_THREADS / block : 1;
    double share = sim_config.sm_count * blocks * block / (double)launched->threads;
    return share < 1 ? share : 1;
}

// What is read once more, as the cache does not hold it from the first time.
static double read_anew(const oomph_sim_cost_t *what)
{
    const double l2 = (double)sim_config.rates.l2_bytes * sim_config.rates.l2_share;
    double read = 0, again = 0, reread = 0;

    for (size_t i = 0; i < what->use_count; i++) {
        const oomph_sim_use_t *use = &what->uses[i];
        if (use->again_bytes + use->reread_bytes > 0)
            read += (double)use->read_bytes;
        again += (double)use->again_bytes;
        reread += (double)use->reread_bytes;
    }
    return (read > l2 ? again : 0) +
           (read * share_in_work(&what->launched) > l2 ? reread : 0);
}

// Adds what a use moves, mapping by mapping, as each may lie elsewhere.
static void add_use(const oomph_sim_use_t *use, moved_t *moved)
{
    const double reads = (double)use->read_bytes / (double)use->bytes;
    const double writes = (double)use->written_bytes / (double)use->bytes;
    const uint64_t end = use->addr + use->bytes;
    uint64_t next;

    for (uint64_t addr = use->addr; addr < end; addr = next) {
        const sim_mapping_t *mapping = sim_space_mapping(addr);
        next = mapping != NULL ? mapping->base + mapping->bytes : addr + SIM_PAGE;
        double bytes = (double)((next < end ? next : end) - addr);
        if (sim_space_place(addr) == SIM_ON_HOST) {
            moved->from_host += bytes * reads;
            moved->to_host += bytes * writes;
        } else {
            moved->device += bytes * (reads + writes);
        }
    }
}

static moved_t moved_by(const oomph_sim_cost_t *what)
{
    moved_t moved = {0};

    for (size_t i = 0; i < what->use_count; i++)
        if (what->uses[i].bytes > 0)
            add_use(&what->uses[i], &moved);
    return moved;
}

// What a kernel moves over the link is moved while it computes.
static uint64_t link_end_ns(engine_t *engine, uint64_t from_ns, double bytes)
{
    if (bytes == 0)
        return from_ns;
    engine->bytes += (uint64_t)bytes;
    return take(engine, from_ns, link_ns(bytes));
}

// What arithmetic and accesses take.
static uint64_t multiprocessors_ns(const oomph_sim_cost_t *what)
{
    const sim_rates_t *rates = &sim_config.rates;
    const double flops_per_s = rates->flops_per_s[what->precision] * rates->flops_share;
    const double accesses_per_s = rates->sm_accesses * cycles_per_s();

    return later(duration_ns(what->flops, flops_per_s),
                 duration_ns(what->accesses, accesses_per_s));
}

static uint64_t start_operator(const sim_work_t *work, engines_t *on, uint64_t now_ns)
{
    const oomph_sim_cost_t *what = &work->cost->what;
    const moved_t moved = moved_by(what);
    const uint64_t from_ns = later(now_ns, on->compute.free_ns);
    uint64_t end_ns = from_ns + multiprocessors_ns(what);

    end_ns = later(end_ns, from_ns + duration_ns(moved.device + read_anew(what),
                                                 device_bytes_per_s()));
    end_ns = later(end_ns, link_end_ns(&on->to_device, from_ns, moved.from_host));
    end_ns = later(end_ns, link_end_ns(&on->to_host, from_ns, moved.to_host));
    end_ns += work->cost_ns;
    on->operator_count++;
    on->flops += what->flops;
    on->device_bytes += moved.device;
    return take(&on->compute, from_ns, end_ns - from_ns);
}

// ---- copies and fills

static uint64_t start_within(double bytes, const sim_work_t *work, engines_t *on,
                             uint64_t now_ns)
{
    if (!sim_has_rates(&sim_config))
        return now_ns + work->cost_ns + duration_ns(bytes, UNKNOWN_BYTES_PER_S);
    double moved = work->kind == SIM_WORK_COPY ? 2 * bytes : bytes; // read and written
    on->device_bytes += moved;
    return take(&on->compute, now_ns,
                work->cost_ns + duration_ns(moved, device_bytes_per_s()));
}

// Keeps both engines busy at the same time, as soon as they are free; NULL is none.
static uint64_t take_both(engine_t *in, engine_t *out, uint64_t from_ns,
                          uint64_t duration)
{
    if (in != NULL)
        from_ns = later(from_ns, in->free_ns);
    if (out != NULL)
        from_ns = later(from_ns, out->free_ns);
    if (in != NULL)
        take(in, from_ns, duration);
    if (out != NULL)
        take(out, from_ns, duration);
    return from_ns + duration;
}

// Between devices, bytes leave one and enter the other; what `device` copies from host
// to host does both.
static uint64_t start_copy(const sim_work_t *work, int device, uint64_t now_ns)
{
    const int dst = sim_space_place(work->dst), src = sim_space_place(work->src);
    const uint64_t bytes = work->bytes * work->rows;
    engine_t *in = NULL, *out = NULL;

    if (dst == src && dst != SIM_ON_HOST)
        return start_within((double)bytes, work, &engines[dst], now_ns);
    if (dst != SIM_ON_HOST || src == SIM_ON_HOST)
        in = &engines[dst != SIM_ON_HOST ? dst : device].to_device;
    if (src != SIM_ON_HOST || dst == SIM_ON_HOST)
        out = &engines[src != SIM_ON_HOST ? src : device].to_host;
    if (in != NULL)
        in->bytes += bytes;
    if (out != NULL)
        out->bytes += bytes;
    return take_both(in, out, now_ns, work->cost_ns + link_ns((double)bytes));
}

static uint64_t start_fill(const sim_work_t *work, int device, uint64_t now_ns)
{
    const uint64_t bytes = work->bytes * work->rows;
    const int place = sim_space_place(work->dst);
    engine_t *out = &engines[device].to_host;

    if (place != SIM_ON_HOST)
        return start_within((double)bytes, work, &engines[place], now_ns);
    out->bytes += bytes;
    return take(out, now_ns, work->cost_ns + link_ns((double)bytes));
}

static uint64_t start_move(const sim_work_t *work, engines_t *on, uint64_t now_ns)
{
    engine_t *engine = work->writes ? &on->to_device : &on->to_host;

    if (work->value == 0)
        return now_ns;
    engine->bytes += work->value;
    return take(engine, now_ns, work->cost_ns + link_ns((double)work->value));
}

// When the last process came that the work waited for.
static uint64_t met_ns(const sim_work_t *work)
{
    uint64_t met_ns = 0;

    sim_work_meeting(work)->is_met(work->compute->what.argument, &met_ns);
    return met_ns;
}

uint64_t sim_engine_start(const sim_work_t *work, const struct CUctx_st *device,
                          uint64_t now_ns)
{
    switch (work->kind) {
    case SIM_WORK_COPY:
        return start_copy(work, device->device, now_ns);
    case SIM_WORK_SET:
        return start_fill(work, device->device, now_ns);
    case SIM_WORK_MOVE:
        return start_move(work, &engines[device->device], now_ns);
    case SIM_WORK_KERNEL:
    case SIM_WORK_COMPUTE:
        if (sim_work_meeting(work) != NULL)
            return later(now_ns, met_ns(work)) + work->cost_ns;
        if (!sim_has_rates(&sim_config))
            return now_ns + work->cost_ns;
        if (work->cost != NULL)
            return start_operator(work, &engines[device->device], now_ns);
        return take(&engines[device->device].compute, now_ns, work->cost_ns);
    case SIM_WORK_WAIT:
        return later(now_ns, work->mark.board ? sim_mark_end_ns(&work->mark) : 0);
    default:
        return now_ns + work->cost_ns;
    }
}

uint64_t sim_engine_kernel_ns(void)
{
    return sim_has_rates(&sim_config) && sim_is_in_operator()
               ? sim_config.rates.launch_ns
               : UNKNOWN_KERNEL_NS;
}

void sim_engine_usage(int device, oomph_sim_usage_t *usage)
{
    const engines_t *of = &engines[device];

    *usage = (oomph_sim_usage_t){
        .now_ns = sim_clock_ns(),
        .compute_busy_ns = of->compute.busy_ns,
        .h2d_busy_ns = of->to_device.busy_ns,
        .d2h_busy_ns = of->to_host.busy_ns,
        .h2d_bytes = of->to_device.bytes,
        .d2h_bytes = of->to_host.bytes,
        .operator_count = of->operator_count,
        .flops = of->flops,
        .device_bytes = of->device_bytes,
    };
}

void sim_engine_reset(void)
{
    memset(engines, 0, sizeof engines);
}
