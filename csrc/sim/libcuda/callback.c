#include "callback.h"

#include "call.h"

#include <pthread.h>

static sim_operation_t *first, *last; // due, by `next_memory`
static uint64_t due_count;            // the one that is running included
static bool thread_is_running;

static void call(sim_operation_t *operation)
{
    CUhostFn function = operation->work.function;
    void *argument = operation->work.argument;

    sim_unlock();
    function(argument);
    sim_lock();
    due_count--;
    sim_queue_callback_done(operation);
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_mark_callback_thread();
    sim_lock();
    while (first != NULL) {
        sim_operation_t *operation = first;
        first = operation->next_memory;
        operation->next_memory = NULL;
        call(operation);
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

static bool start_thread(void)
{
    pthread_t thread;

    if (thread_is_running)
        return true;
    thread_is_running = pthread_create(&thread, NULL, run, NULL) == 0;
    if (thread_is_running)
        pthread_detach(thread);
    return thread_is_running;
}

void sim_callback_run(sim_operation_t *operation)
{
    due_count++;
    if (!start_thread()) {
        call(operation);
        return;
    }
    operation->next_memory = NULL;
    if (first == NULL)
        first = operation;
    else
        last->next_memory = operation;
    last = operation;
}

uint64_t sim_callback_count(void)
{
    return due_count;
}
