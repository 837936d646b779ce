#include "libcuda/objects/cost.h"

#include "libcuda/engine/queue.h"
#include "libcuda/session/call.h"
#include "libcuda/session/config.h"

#include <stdlib.h>
#include <string.h>

static __thread int depth;             // of operators
static __thread unsigned kernel_count; // of the outermost one

bool sim_is_in_operator(void)
{
    return depth > 0;
}

void sim_cost_count_kernel(void)
{
    kernel_count++;
}

unsigned oomph_sim_operator(int change)
{
    if (depth == 0)
        kernel_count = 0;
    depth += change;
    return kernel_count;
}

static sim_cost_t *copy(const oomph_sim_cost_t *what)
{
    size_t bytes = what->use_count * sizeof what->uses[0];
    sim_cost_t *cost = malloc(sizeof *cost + bytes);

    if (cost == NULL)
        return NULL;
    oomph_sim_use_t *uses = (oomph_sim_use_t *)(cost + 1);
    if (bytes > 0)
        memcpy(uses, what->uses, bytes);
    *cost = (sim_cost_t){.what = *what, .owners = 1};
    cost->what.uses = uses;
    return cost;
}

void sim_cost_share(sim_cost_t *cost)
{
    if (cost != NULL)
        cost->owners++;
}

void sim_cost_drop(sim_cost_t *cost)
{
    if (cost != NULL && --cost->owners == 0)
        free(cost);
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
        .cost_ns = kernel_count == 0 ? sim_config.rates.launch_ns : 0,
        .cost = copy(what),
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
