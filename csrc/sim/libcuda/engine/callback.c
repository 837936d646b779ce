#include "libcuda/engine/callback.h"

#include "libcuda/engine/fault.h"
#include "libcuda/objects/stream.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/lock.h"
#include "libcuda/session/session.h"
#include "sim.h"

static sim_operation_t *first, *last; // due, by `next_due`
static uint64_t due_count;            // the one that is running included
static bool thread_is_running;
static __thread bool is_in_function; // a computation may call the driver, no function

static void call_function(const sim_work_t *work)
{
    CUhostFn function = work->function;
    void *argument = work->argument;

    sim_unlock();
    is_in_function = true;
    function(argument);
    is_in_function = false;
    sim_lock();
}

static void compute(const sim_work_t *work, CUstream stream)
{
    const oomph_sim_compute_t what = work->compute->what;

    sim_unlock();
    int failed = what.run(what.argument);
    sim_lock();
    if (failed != 0)
        stream->context->sticky = CUDA_ERROR_ASSERT;
}

static void call(sim_operation_t *operation)
{
    if (operation->work.kind == SIM_WORK_CALL)
        call_function(&operation->work);
    else if (sim_work_may_compute(&operation->work, operation->stream))
        compute(&operation->work, operation->stream);
    due_count--;
    operation->done(operation);
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_lock();
    while (first != NULL) {
        sim_operation_t *operation = first;
        first = operation->next_due;
        operation->next_due = NULL;
        call(operation);
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

void sim_callback_run(sim_operation_t *operation, void (*done)(sim_operation_t *))
{
    operation->done = done;
    due_count++;
    if (!sim_start_thread(&thread_is_running, run)) {
        call(operation);
        return;
    }
    operation->next_due = NULL;
    if (first == NULL)
        first = operation;
    else
        last->next_due = operation;
    last = operation;
}

uint64_t sim_callback_count(void)
{
    return due_count;
}

bool sim_callback_is_this_thread(void)
{
    return is_in_function;
}
