/* Streams and events: the order of work, virtual time, and waiting. */
#include "sim_check.h"

#include <pthread.h>
#include <stdatomic.h>

static void test_work_completes_when_time_has_passed(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    kernel(stream, 1000);
    OK(cuEventRecord(event, stream));
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    oomph_sim_advance(999);
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    oomph_sim_advance(1);
    OK(cuEventQuery(event));
    OK(cuStreamQuery(stream));
}

static void test_streams_run_side_by_side(void)
{
    start(NULL);
    CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream b = make_stream(CU_STREAM_NON_BLOCKING);
    kernel(a, 1000);
    kernel(b, 1000);
    oomph_sim_advance(1000);
    OK(cuStreamQuery(a));
    OK(cuStreamQuery(b));
}

static void test_a_stream_does_one_thing_after_the_other(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    kernel(stream, 1000);
    kernel(stream, 1000);
    oomph_sim_advance(1999);
    CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    oomph_sim_advance(1);
    OK(cuStreamQuery(stream));
}

static void test_a_stream_without_a_wait_reads_what_is_not_there_yet(void)
{
    start(NULL);
    CUstream writer = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream reader = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent written = make_event(CU_EVENT_DISABLE_TIMING);
    CUdeviceptr addr = allocate(PAGE);
    int *pinned = pin(8);
    OK(cuMemsetD8(addr, 0, PAGE));
    CHECK(oomph_sim_launch(writer, addr, 8, 1, 100000) == CUDA_SUCCESS);
    OK(cuEventRecord(written, writer));
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, reader));
    OK(cuStreamSynchronize(reader));
    CHECK(*pinned == 0);
    OK(cuStreamWaitEvent(reader, written, 0));
    CHECK(stats().misuse_count == 1);
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, reader));
    OK(cuStreamSynchronize(reader));
    CHECK(*pinned == (int)0xABABABAB);
    CHECK(stats().misuse_count == 1);
}

static void test_a_held_stream_stands_still_while_others_go_on(void)
{
    start(NULL);
    CUstream held = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    kernel(held, 1000);
    OK(cuEventRecord(event, held));
    oomph_sim_hold(held);
    kernel(other, 5000);
    OK(cuStreamSynchronize(other));
    oomph_sim_advance(1000000);
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    oomph_sim_release(held);
    OK(cuEventQuery(event));
    CHECK(stats().held_waits == 0);
}

static void test_what_a_held_stream_is_in_the_middle_of_does_not_complete(void)
{
    start(NULL);
    CUstream held = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    int *pinned = pin(8);
    OK(cuMemsetD32(addr, 5, 1));
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, held));
    oomph_sim_hold(held);
    oomph_sim_advance(1000000);
    CHECK(*pinned == 0);
    oomph_sim_release(held);
    CHECK(*pinned == 5);
}

static void test_an_event_on_a_held_stream_is_not_done(void)
{
    start(NULL);
    CUstream held = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    oomph_sim_hold(held);
    OK(cuEventRecord(event, held));
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    oomph_sim_release(held);
    OK(cuEventQuery(event));
}

static void test_waiting_for_a_held_stream_releases_and_counts_it(void)
{
    start(NULL);
    CUstream held = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream behind = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    oomph_sim_hold(held);
    kernel(held, 1000);
    OK(cuEventRecord(event, held));
    OK(cuStreamWaitEvent(behind, event, 0));
    OK(cuStreamSynchronize(behind));
    OK(cuEventQuery(event));
    CHECK(stats().held_waits == 1);
}

static void test_the_default_stream_and_blocking_streams_wait_for_each_other(void)
{
    start(NULL);
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    CUstream free_running = make_stream(CU_STREAM_NON_BLOCKING);
    kernel(blocking, 1000);
    kernel(NULL, 1000);
    kernel(blocking, 1000);
    kernel(free_running, 1000);
    oomph_sim_advance(1000);
    OK(cuStreamQuery(free_running));
    oomph_sim_advance(1999);
    CHECK_RESULT(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    oomph_sim_advance(1);
    OK(cuStreamQuery(blocking));
}

static void test_waiting_for_the_default_stream_includes_blocking_streams(void)
{
    start(NULL);
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    CUstream free_running = make_stream(CU_STREAM_NON_BLOCKING);
    kernel(blocking, 1000);
    kernel(free_running, 9000);
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamQuery(blocking));
    CHECK_RESULT(cuStreamQuery(free_running), CUDA_ERROR_NOT_READY);
}

static unsigned long long id_of(CUstream stream)
{
    unsigned long long id;

    OK(cuStreamGetId(stream, &id));
    return id;
}

static void test_zero_and_one_are_the_same_stream_and_two_is_another(void)
{
    start(NULL);
    CHECK(id_of(NULL) == id_of(CU_STREAM_LEGACY));
    CHECK(id_of(NULL) != id_of(CU_STREAM_PER_THREAD));
    CHECK(id_of(CU_STREAM_PER_THREAD) == id_of(CU_STREAM_PER_THREAD));
}

static void *ask_id(void *context)
{
    static unsigned long long id;

    OK(cuCtxSetCurrent(context));
    id = id_of(CU_STREAM_PER_THREAD);
    return &id;
}

static void test_each_thread_has_its_own_stream_two(void)
{
    CUcontext context;
    pthread_t thread;
    void *id;

    start(NULL);
    OK(cuCtxGetCurrent(&context));
    unsigned long long own = id_of(CU_STREAM_PER_THREAD);
    CHECK(pthread_create(&thread, NULL, ask_id, context) == 0);
    CHECK(pthread_join(thread, &id) == 0);
    CHECK(*(unsigned long long *)id != own);
}

static void test_a_destroyed_streams_handle_comes_back_with_a_new_id(void)
{
    start(NULL);
    CUstream first = make_stream(CU_STREAM_NON_BLOCKING);
    unsigned long long id = id_of(first);
    OK(cuStreamDestroy(first));
    CHECK_RESULT(cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
    CHECK(misuse_says("was destroyed"));
    CUstream second = make_stream(CU_STREAM_NON_BLOCKING);
    CHECK(second == first && id_of(second) != id);
}

static void test_a_destroyed_stream_still_finishes_its_work(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    kernel(stream, 1000);
    OK(cuEventRecord(event, stream));
    OK(cuStreamDestroy(stream));
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CHECK(other != stream); // it would queue behind the old work
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(event));
}

static void test_an_event_handle_is_reused_and_a_stale_one_noticed(void)
{
    start(NULL);
    CUevent first = make_event(0);
    OK(cuEventDestroy(first));
    CHECK_RESULT(cuEventDestroy(first), CUDA_ERROR_INVALID_HANDLE);
    CHECK(misuse_says("was destroyed"));
    CHECK(make_event(0) == first);
}

static void test_the_record_of_a_destroyed_event_leaves_its_successor_alone(void)
{
    float ms;

    start(NULL);
    CUstream late = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream early = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent first = make_event(0);
    kernel(late, 5000000);
    OK(cuEventRecord(first, late));
    OK(cuEventDestroy(first));
    CUevent second = make_event(0), end = make_event(0);
    CHECK(second == first);
    OK(cuEventRecord(second, early)); // now
    kernel(early, 1000000);
    OK(cuEventRecord(end, early));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&ms, second, end));
    CHECK(ms == 1.0f);
}

static void test_an_event_that_was_never_recorded_is_done(void)
{
    start(NULL);
    CUevent event = make_event(0);
    OK(cuEventQuery(event));
    OK(cuEventSynchronize(event));
    OK(cuStreamWaitEvent(NULL, event, 0));
}

static void test_a_wait_is_for_the_record_before_it(void)
{
    start(NULL);
    CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream b = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    kernel(a, 1000);
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    kernel(a, 9000);
    OK(cuEventRecord(event, a));
    oomph_sim_advance(1000);
    OK(cuStreamQuery(b));
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

static void test_elapsed_time_is_virtual_time(void)
{
    float ms;

    start(NULL);
    CUevent before = make_event(0), after = make_event(0);
    CUevent untimed = make_event(CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord(before, NULL));
    kernel(NULL, 2500000);
    OK(cuEventRecord(after, NULL));
    CHECK_RESULT(cuEventElapsedTime(&ms, before, after), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(after));
    OK(cuEventElapsedTime(&ms, before, after));
    CHECK(ms == 2.5f);
    OK(cuEventRecord(untimed, NULL));
    CHECK_RESULT(cuEventElapsedTime(&ms, before, untimed), CUDA_ERROR_INVALID_HANDLE);
}

static void test_the_tick_lets_a_polling_loop_end(void)
{
    int polls = 0;

    start("1GiB,tick=1us");
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    kernel(NULL, 10000);
    OK(cuEventRecord(event, NULL));
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY)
        polls++;
    CHECK(polls > 3 && polls < 20);
}

static atomic_int called;

static void count_call(void *argument)
{
    CHECK(cuCtxSynchronize() == CUDA_ERROR_NOT_PERMITTED);
    atomic_fetch_add(&called, *(int *)argument);
}

static void test_a_host_function_runs_in_its_streams_order(void)
{
    static int one = 1;

    start(NULL);
    atomic_store(&called, 0);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    kernel(stream, 1000);
    OK(cuLaunchHostFunc(stream, count_call, &one));
    kernel(stream, 1000);
    oomph_sim_advance(999);
    CHECK(atomic_load(&called) == 0);
    oomph_sim_advance(1);
    CHECK(atomic_load(&called) == 1);
    CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(stream));
    CHECK(misuse_says("called from a host function"));
}

static void test_a_long_queue_makes_the_caller_wait(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 5000; i++)
        kernel(stream, 1000);
    CHECK(stats().pending_count <= 1100);
    CHECK(oomph_sim_now_ns() > 3000000);
}

int main(void)
{
    run(test_work_completes_when_time_has_passed);
    run(test_streams_run_side_by_side);
    run(test_a_stream_does_one_thing_after_the_other);
    run(test_a_stream_without_a_wait_reads_what_is_not_there_yet);
    run(test_a_held_stream_stands_still_while_others_go_on);
    run(test_what_a_held_stream_is_in_the_middle_of_does_not_complete);
    run(test_an_event_on_a_held_stream_is_not_done);
    run(test_waiting_for_a_held_stream_releases_and_counts_it);
    run(test_the_default_stream_and_blocking_streams_wait_for_each_other);
    run(test_waiting_for_the_default_stream_includes_blocking_streams);
    run(test_zero_and_one_are_the_same_stream_and_two_is_another);
    run(test_each_thread_has_its_own_stream_two);
    run(test_a_destroyed_streams_handle_comes_back_with_a_new_id);
    run(test_a_destroyed_stream_still_finishes_its_work);
    run(test_an_event_handle_is_reused_and_a_stale_one_noticed);
    run(test_the_record_of_a_destroyed_event_leaves_its_successor_alone);
    run(test_an_event_that_was_never_recorded_is_done);
    run(test_a_wait_is_for_the_record_before_it);
    run(test_elapsed_time_is_virtual_time);
    run(test_the_tick_lets_a_polling_loop_end);
    run(test_a_host_function_runs_in_its_streams_order);
    run(test_a_long_queue_makes_the_caller_wait);
    return finish();
}
