#include "libcuda/engine/fault.h"

#include "libcuda/memory/device.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/stream.h"
#include "libcuda/session/report.h"
#include "sim.h"

// A kernel needs peer access to use what another device allocated; copies do not.
static bool lacks_peer_access(const struct CUctx_st *context, uint64_t addr)
{
    const sim_reservation_t *reservation = sim_space_find(addr);

    return reservation != NULL && reservation->owner != NULL &&
           reservation->owner != context &&
           !(context->peers >> reservation->owner->device & 1);
}

static void fault(const sim_work_t *work, CUcontext context, uint64_t addr, bool write,
                  const char *why)
{
    context->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    sim_misuse(CUDA_SUCCESS, "%s of device %d %s %#llx, which %s", work->call,
               context->device, write ? "writes" : "reads", (unsigned long long)addr,
               why);
}

bool sim_fault_check(const sim_work_t *work, CUstream stream, uint64_t addr, bool write)
{
    CUcontext context = stream->context;
    uint64_t bad = addr;

    if ((work->kind == SIM_WORK_KERNEL || work->kind == SIM_WORK_COMPUTE) &&
        lacks_peer_access(context, addr)) {
        fault(work, context, addr, write, "is another device's");
        return false;
    }
    switch (sim_space_check(addr, work->bytes, context->device, write, &bad)) {
    case SIM_CHECK_NOT_MAPPED:
        fault(work, context, bad, write, "is not mapped");
        return false;
    case SIM_CHECK_NO_ACCESS:
        fault(work, context, bad, write, "the device has no access to");
        return false;
    default:
        return true;
    }
}

bool sim_work_may_use_memory(const sim_work_t *work, CUstream stream)
{
    oomph_sim_range_t own[2];
    const oomph_sim_range_t *ranges;
    size_t count = sim_work_ranges(work, own, &ranges);
    bool good = stream->context->sticky == CUDA_SUCCESS;

    for (size_t i = 0; i < count && good; i++) {
        sim_work_t touched = *work;
        touched.bytes = ranges[i].bytes;
        good = sim_fault_check(&touched, stream, ranges[i].addr, ranges[i].writes);
    }
    return good;
}
