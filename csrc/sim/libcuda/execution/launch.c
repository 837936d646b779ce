/* launch.c - what a stream does besides copies: kernels, operators, host functions,
 * values in memory. Kernels do nothing but take their time.
 */
#include "libcuda/base/lock.h"
#include "libcuda/engine/engine.h"
#include "libcuda/engine/queue.h"
#include "libcuda/engine/submit.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/module.h"
#include "libcuda/execution/stream.h"
#include "libcuda/objects/operator.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"
#include "runtime.h"
#include "sim.h"

#include <stdlib.h>

enum { VALUES_MAX = 256 }; // operations of a batch are fewer

static CUresult submit(CUstream handle, const sim_work_t *work)
{
    CUstream stream;
    CUresult result = sim_stream_find(handle, &stream);

    return result == CUDA_SUCCESS ? sim_queue_submit(stream, work, NULL) : result;
}

// Whether a kernel that this thread launches must be refused, as it would silently
// compute nothing. With values, those of PyTorch's operators are launched dry, beside
// the computations that stand for them.
static bool is_refused(const char *name)
{
    if (sim_config.memory != SIM_MEMORY_VALUES || sim_is_dry())
        return false;
    sim_refuse_kernel(name);
    return true;
}

int oomph_sim_refuses(const char *function)
{
    sim_cost_count_library_call();
    sim_lock();
    bool refused = is_refused(function);
    sim_unlock();
    return refused;
}

static CUresult launch(const char *name, uint64_t blocks, unsigned block_threads,
                       CUstream stream)
{
    const sim_work_t work = {.kind = SIM_WORK_KERNEL,
                             .is_part = sim_is_in_operator(),
                             .call = sim_current_call(),
                             .cost_ns = sim_engine_kernel_ns()};

    sim_cost_count_kernel(blocks, block_threads);
    if (sim_config.kernels_fail) {
        sim_unsupported(name);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (is_refused(name))
        return CUDA_ERROR_NOT_SUPPORTED;
    return submit(stream, &work);
}

static CUresult launch_function(CUfunction function, uint64_t blocks,
                                unsigned block_threads, CUstream stream)
{
    return launch(function != NULL ? sim_function_name(function) : "no kernel", blocks,
                  block_threads, stream);
}

int oomph_sim_launch_kernel(const char *name, uint64_t blocks, unsigned block_threads,
                            CUstream stream)
{
    CUresult result = sim_enter("cuLaunchKernel");

    if (result == CUDA_SUCCESS)
        result = launch(name, blocks, block_threads, stream);
    return (int)sim_leave(result, "%s, %p", name, (void *)stream);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, CUstream stream,
                        void **parameters, void **extra)
{
    (void)parameters;
    (void)extra;
    return SIM_CALL(launch_function(function, (uint64_t)grid_x * grid_y * grid_z,
                                    block_x * block_y * block_z, stream),
                    "%p, %ux%ux%u, %ux%ux%u, %u, %p", (void *)function, grid_x, grid_y,
                    grid_z, block_x, block_y, block_z, shared_bytes, (void *)stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                          void **parameters, void **extra)
{
    (void)parameters;
    (void)extra;
    return SIM_CALL(
        config != NULL
            ? launch_function(function,
                              (uint64_t)config->gridDimX * config->gridDimY *
                                  config->gridDimZ,
                              config->blockDimX * config->blockDimY * config->blockDimZ,
                              config->hStream)
            : CUDA_ERROR_INVALID_VALUE,
        "%p", (void *)function);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x,
                                   unsigned grid_y, unsigned grid_z, unsigned block_x,
                                   unsigned block_y, unsigned block_z,
                                   unsigned shared_bytes, CUstream stream,
                                   void **parameters)
{
    (void)parameters;
    return SIM_CALL(launch_function(function, (uint64_t)grid_x * grid_y * grid_z,
                                    block_x * block_y * block_z, stream),
                    "%p, %ux%ux%u, %ux%ux%u, %u, %p", (void *)function, grid_x, grid_y,
                    grid_z, block_x, block_y, block_z, shared_bytes, (void *)stream);
}

int oomph_sim_launch(CUstream stream, uint64_t addr, size_t bytes, int write,
                     uint64_t cost_ns)
{
    const sim_work_t work = {
        .kind = SIM_WORK_KERNEL,
        .call = "kernel",
        .cost_ns = cost_ns,
        .dst = addr,
        .bytes = bytes,
        .rows = 1,
        .writes = write != 0,
    };

    return (int)SIM_CALL(submit(stream, &work), "%p, %#llx, %zu, %d", (void *)stream,
                         (unsigned long long)addr, bytes, write);
}

int oomph_sim_sleep(CUstream stream, uint64_t ns)
{
    const sim_work_t work = {.kind = SIM_WORK_SLEEP, .call = "kernel", .cost_ns = ns};

    return (int)SIM_CALL(submit(stream, &work), "%p, %llu", (void *)stream,
                         (unsigned long long)ns);
}

// ---- operators: what they compute, and what that costs

int oomph_sim_compute(const oomph_sim_compute_t *what, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_enter("cuLaunchKernel");
    sim_compute_t *compute = sim_compute_new(what);

    if (compute == NULL)
        what->release(what->argument);
    if (result == CUDA_SUCCESS && compute == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        const sim_work_t work = {.kind = SIM_WORK_COMPUTE,
                                 .call = what->name,
                                 .cost_ns = what->meeting ? what->cost_ns
                                                          : sim_engine_kernel_ns(),
                                 .compute = compute};
        result = sim_queue_submit(stream, &work, NULL);
    } else {
        sim_compute_drop(compute);
    }
    return (int)sim_leave(result, "%s, %p", what->name, (void *)handle);
}

static CUresult submit_cost(const oomph_sim_cost_t *what, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)what->precision >= OOMPH_SIM_PRECISIONS)
        return CUDA_ERROR_INVALID_VALUE;
    // One that launched none used a library of stand-ins, which launch none.
    const bool is_launch =
        sim_has_rates(&sim_config) && what->launched.kernel_count == 0;
    const sim_work_t work = {
        .kind = SIM_WORK_KERNEL,
        .call = what->name,
        .cost_ns = is_launch ? sim_config.rates.launch_ns : 0,
        .cost = sim_cost_new(what),
    };
    if (work.cost == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return sim_queue_submit(stream, &work, NULL);
}

int oomph_sim_cost(const oomph_sim_cost_t *what, CUstream handle)
{
    sim_lock(); // no call of the program's: what tests count goes on
    CUresult result = submit_cost(what, handle);
    sim_trace_cost(what);
    sim_unlock();
    return (int)result;
}

oomph_sim_launched_t oomph_sim_operator(int change, oomph_sim_launched_t before)
{
    oomph_sim_launched_t ended = sim_cost_launched(change, before);

    if (change < 0 && !sim_is_in_operator() && sim_has_rates(&sim_config)) {
        sim_lock();
        sim_queue_advance(sim_config.rates.dispatch_ns);
        sim_trace_dispatch();
        sim_unlock();
    }
    return ended;
}

// ---- host functions

static CUresult submit_call(CUstream stream, CUhostFn function, void *argument)
{
    const sim_work_t work = {
        .kind = SIM_WORK_CALL,
        .call = sim_current_call(),
        .function = function,
        .argument = argument,
    };

    return function != NULL ? submit(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    return SIM_CALL(submit_call(stream, function, argument), "%p, %p", (void *)stream,
                    argument);
}

// A stream callback, an older kind of host function with more arguments.
typedef struct callback {
    CUstreamCallback function;
    CUstream stream;
    void *argument;
} callback_t;

static void run_callback(void *argument)
{
    callback_t callback = *(callback_t *)argument;

    free(argument);
    callback.function(callback.stream, CUDA_SUCCESS, callback.argument);
}

static CUresult add_callback(CUstream stream, CUstreamCallback function, void *argument)
{
    callback_t *callback = malloc(sizeof *callback);

    if (callback == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *callback = (callback_t){function, stream, argument};
    CUresult result = submit_call(stream, run_callback, callback);
    if (result != CUDA_SUCCESS)
        free(callback);
    return result;
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *argument,
                             unsigned flags)
{
    return SIM_CALL(function != NULL && flags == 0
                        ? add_callback(stream, function, argument)
                        : CUDA_ERROR_INVALID_VALUE,
                    "%p, %p, %u", (void *)stream, argument, flags);
}

// ---- values in memory

static CUresult submit_value(sim_work_kind_t kind, CUstream stream, CUdeviceptr addr,
                             uint64_t value, unsigned value_bytes, unsigned flags)
{
    const sim_work_t work = {
        .kind = kind,
        .call = sim_current_call(),
        .dst = addr,
        .bytes = value_bytes,
        .rows = 1,
        .value = value,
        .value_bytes = value_bytes,
        .wait_flags = flags,
    };

    return addr != 0 && addr % value_bytes == 0 ? submit(stream, &work)
                                                : CUDA_ERROR_INVALID_VALUE;
}

// A call that is one such operation.
static CUresult use_value(const char *function, sim_work_kind_t kind, CUstream stream,
                          CUdeviceptr addr, uint64_t value, unsigned value_bytes,
                          unsigned flags)
{
    CUresult result = sim_enter(function);

    if (result == CUDA_SUCCESS)
        result = submit_value(kind, stream, addr, value, value_bytes, flags);
    return sim_leave(result, "%p, %#llx, %llu, %u", (void *)stream, addr,
                     (unsigned long long)value, flags);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                 unsigned flags)
{
    return use_value(__func__, SIM_WORK_SET, stream, addr, value, sizeof value, flags);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                 unsigned flags)
{
    return use_value(__func__, SIM_WORK_SET, stream, addr, value, sizeof value, flags);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                unsigned flags)
{
    return use_value(__func__, SIM_WORK_WAIT_VALUE, stream, addr, value, sizeof value,
                     flags);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                unsigned flags)
{
    return use_value(__func__, SIM_WORK_WAIT_VALUE, stream, addr, value, sizeof value,
                     flags);
}

typedef struct value_operation {
    sim_work_kind_t kind;
    uint64_t addr, value;
    unsigned value_bytes, flags;
} value_operation_t;

static CUresult read_operation(const CUstreamBatchMemOpParams *from,
                               value_operation_t *to)
{
    bool is_64 = from->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                 from->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;

    switch (from->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        *to =
            (value_operation_t){SIM_WORK_WAIT_VALUE, from->waitValue.address,
                                is_64 ? from->waitValue.value64 : from->waitValue.value,
                                is_64 ? 8 : 4, from->waitValue.flags};
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        *to = (value_operation_t){SIM_WORK_SET, from->writeValue.address,
                                  is_64 ? from->writeValue.value64
                                        : from->writeValue.value,
                                  is_64 ? 8 : 4, from->writeValue.flags};
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult submit_values(CUstream stream, unsigned count,
                              const CUstreamBatchMemOpParams *list, unsigned flags)
{
    value_operation_t operation;
    CUresult result = list == NULL || count == 0 || count >= VALUES_MAX || flags != 0
                          ? CUDA_ERROR_INVALID_VALUE
                          : CUDA_SUCCESS;

    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = read_operation(&list[i], &operation);
        if (result == CUDA_SUCCESS &&
            (operation.addr == 0 || operation.addr % operation.value_bytes != 0))
            result = CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        read_operation(&list[i], &operation);
        result = submit_value(operation.kind, stream, operation.addr, operation.value,
                              operation.value_bytes, operation.flags);
    }
    return result;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count,
                               CUstreamBatchMemOpParams *list, unsigned flags)
{
    return SIM_CALL(submit_values(stream, count, list, flags), "%p, %u, %u",
                    (void *)stream, count, flags);
}
