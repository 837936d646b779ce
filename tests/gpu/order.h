/* order.h - the checks of conformance.c about the order of work: streams, events,
 * values in memory, functions of the host.
 */
#pragma once
#include "report.h"

static unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;

    cu.stream_id(stream, &id);
    return id;
}

static void *id_in_thread(void *context)
{
    static unsigned long long id;

    cu.context_set(context);
    id = id_of(CU_STREAM_PER_THREAD);
    return &id;
}

static void check_stream_ids(CUcontext context)
{
    CUstream first, second;
    pthread_t thread;
    void *other_id;

    cu.stream_create(&first, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&second, CU_STREAM_NON_BLOCKING);
    check("stream_ids_differ", id_of(first) != id_of(second));
    check("stream_0_is_stream_legacy", id_of(NULL) == id_of(CU_STREAM_LEGACY));
    check("stream_per_thread_is_not_legacy",
          id_of(NULL) != id_of(CU_STREAM_PER_THREAD));
    pthread_create(&thread, NULL, id_in_thread, context);
    pthread_join(thread, &other_id);
    note("stream_per_thread_ids_differ_between_threads", "%s",
         *(unsigned long long *)other_id != id_of(CU_STREAM_PER_THREAD) ? "yes" : "no");
    unsigned long long id = id_of(second);
    CUstream stale = second;
    cu.stream_destroy(second);
    cu.stream_create(&second, CU_STREAM_NON_BLOCKING);
    note("a_destroyed_handle_is_reused", "%s", second == stale ? "yes" : "no");
    check("a_new_stream_has_a_new_id", id_of(second) != id);
    cu.stream_destroy(first);
    cu.stream_destroy(second);
}

static void check_order(void)
{
    CUstream busy, other, blocking;
    CUevent event, before;
    float ms;

    cu.stream_create(&busy, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&other, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&blocking, CU_STREAM_DEFAULT);
    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    cu.event_create(&before, CU_EVENT_DEFAULT);
    expect("query_of_an_event_never_recorded", cu.event_query(event), CUDA_SUCCESS);
    expect("elapsed_of_events_never_recorded", cu.elapsed(&ms, before, before),
           CUDA_ERROR_INVALID_HANDLE);
    make_busy(busy);
    cu.event_record(event, busy);
    expect("query_of_a_busy_stream", cu.stream_query(busy), CUDA_ERROR_NOT_READY);
    expect("query_of_a_pending_event", cu.event_query(event), CUDA_ERROR_NOT_READY);
    expect("another_stream_goes_on", cu.stream_synchronize(other), CUDA_SUCCESS);
    cu.stream_wait(other, event, 0);
    expect("a_stream_waits_for_an_event", cu.stream_query(other), CUDA_ERROR_NOT_READY);
    expect("the_default_stream_does_not_wait_for_a_non_blocking_one",
           cu.stream_query(NULL), CUDA_SUCCESS);
    open_gate();
    expect("synchronize_of_the_waiting_stream", cu.stream_synchronize(other),
           CUDA_SUCCESS);
    expect("the_event_is_done", cu.event_query(event), CUDA_SUCCESS);
    make_busy(blocking);
    cu.event_record(event, NULL);
    expect("the_default_stream_waits_for_a_blocking_one", cu.event_query(event),
           CUDA_ERROR_NOT_READY);
    open_gate();
    expect("event_synchronize", cu.event_synchronize(event), CUDA_SUCCESS);
    cu.event_record(before, NULL);
    cu.event_synchronize(before);
    expect("elapsed_of_an_untimed_event", cu.elapsed(&ms, before, event),
           CUDA_ERROR_INVALID_HANDLE);
    cu.event_destroy(event);
    cu.event_destroy(before);
    cu.stream_destroy(busy);
    cu.stream_destroy(other);
    cu.stream_destroy(blocking);
}

// ---- values in memory, and what they gate

static void check_values(void)
{
    CUstream gated, opener;
    void *flag;

    cu.stream_create(&gated, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&opener, CU_STREAM_NON_BLOCKING);
    cu.host_alloc(&flag, 64, 0);
    memset(flag, 0, 64);
    CUdeviceptr addr = (CUdeviceptr)(uintptr_t)flag;
    CUresult result = cu.wait_value(gated, addr, 5, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        report("waived", "values_in_memory", name_of(result));
        return;
    }
    expect("wait_value", result, CUDA_SUCCESS);
    expect("a_stream_waits_for_a_value", cu.stream_query(gated), CUDA_ERROR_NOT_READY);
    expect("write_value", cu.write_value(opener, addr, 6, 0), CUDA_SUCCESS);
    expect("a_written_value_lets_it_go_on", cu.stream_synchronize(gated), CUDA_SUCCESS);
    cu.host_free(flag);
    cu.stream_destroy(gated);
    cu.stream_destroy(opener);
}

// ---- functions of the host

typedef struct order {
    int calls;
    unsigned seen[4]; // what each call found in `value`
    volatile unsigned *value;
    CUstream stream; // that the callback was given
    CUresult status;
} order_t;

static void look(void *context)
{
    order_t *order = context;

    if (order->calls < 4)
        order->seen[order->calls] = *order->value;
    order->calls++;
}

static void CUDA_CB look_back(CUstream stream, CUresult status, void *context)
{
    order_t *order = context;

    order->stream = stream;
    order->status = status;
    look(context);
}

static void check_host_functions(void)
{
    order_t order = {0};
    CUdeviceptr addr;
    CUstream stream;
    void *pinned;

    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    cu.alloc(&addr, page);
    cu.host_alloc(&pinned, sizeof(unsigned), 0);
    order.value = pinned;
    for (unsigned i = 0; i < 3; i++) {
        cu.fill_async(addr, 11 + i, 1, stream);
        cu.copy_out_async(pinned, addr, sizeof(unsigned), stream);
        if (i < 2)
            expect("host_function", cu.launch_host(stream, look, &order), CUDA_SUCCESS);
        else
            expect("callback", cu.add_callback(stream, look_back, &order, 0),
                   CUDA_SUCCESS);
    }
    cu.stream_synchronize(stream);
    check("host_functions_are_called_once", order.calls == 3);
    check("a_host_function_sees_the_work_before_it_and_none_after",
          order.seen[0] == 11 && order.seen[1] == 12 && order.seen[2] == 13);
    check("a_callback_is_told_its_stream_and_that_all_is_well",
          order.stream == stream && order.status == CUDA_SUCCESS);
    cu.host_free(pinned);
    cu.free(addr);
    cu.stream_destroy(stream);
}
