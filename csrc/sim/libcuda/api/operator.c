/* operator.c - what the operators of a program give a stream: what they compute, and
 * what that costs.
 */
#include "libcuda/api/call.h"
#include "libcuda/api/stream.h"
#include "libcuda/engine/engine.h"
#include "libcuda/engine/submit.h"
#include "libcuda/objects/compute.h"
#include "libcuda/objects/cost.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/config.h"
#include "libcuda/session/lock.h"
#include "libcuda/session/session.h"
#include "sim.h"

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
                                 .cost_ns = sim_engine_kernel_ns(),
                                 .compute = compute};
        result = sim_queue_submit(stream, &work, NULL);
    } else {
        sim_compute_drop(compute);
    }
    return (int)sim_leave(result, "%s, %p", what->name, (void *)handle);
}

static CUresult submit(const oomph_sim_cost_t *what, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)what->precision >= OOMPH_SIM_PRECISIONS)
        return CUDA_ERROR_INVALID_VALUE;
    // Kernels of libraries that are simulated by stand-ins were not launched.
    const sim_work_t work = {
        .kind = SIM_WORK_KERNEL,
        .call = what->name,
        .cost_ns = sim_cost_kernel_count() == 0 ? sim_config.rates.launch_ns : 0,
        .cost = sim_cost_new(what),
    };
    if (work.cost == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return sim_queue_submit(stream, &work, NULL);
}

int oomph_sim_cost(const oomph_sim_cost_t *what, CUstream handle)
{
    sim_lock(); // no call of the program's: the clock and what tests count go on
    CUresult result = submit(what, handle);
    sim_unlock();
    return (int)result;
}
