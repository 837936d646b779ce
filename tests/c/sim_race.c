/* Memory that two streams use: with an order between them, or without. */
#include "sim_check.h"

// A kernel of one stream writes, and then one of another reads; gives the misuses.
static uint64_t use_on_two_streams(void (*order)(CUstream first, CUstream then))
{
    start(NULL);
    CUstream writer = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream reader = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    CHECK(oomph_sim_launch(writer, addr, 4096, 1, 100000) == CUDA_SUCCESS);
    if (order != NULL)
        order(writer, reader);
    CHECK(oomph_sim_launch(reader, addr + 4000, 4096, 0, 10) == CUDA_SUCCESS);
    return stats().misuse_count;
}

static void by_event(CUstream first, CUstream then)
{
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);

    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(then, event, 0));
}

static void through_a_third_stream(CUstream first, CUstream then)
{
    CUstream third = make_stream(CU_STREAM_NON_BLOCKING);

    by_event(first, third);
    by_event(third, then);
}

static void by_the_host(CUstream first, CUstream then)
{
    (void)then;
    OK(cuStreamSynchronize(first));
}

static void by_a_value(CUstream first, CUstream then)
{
    CUdeviceptr flag = allocate(PAGE);

    OK(cuStreamWriteValue32(first, flag, 1, 0));
    OK(cuStreamWaitValue32(then, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void test_using_memory_on_two_streams_side_by_side_is_a_misuse(void)
{
    CHECK(use_on_two_streams(NULL) == 1);
    CHECK(misuse_says("does not wait for a pending kernel of stream"));
    CHECK(misuse_says("oomph_sim_launch: stream"));
}

static void test_using_memory_on_two_streams_in_order_is_none(void)
{
    CHECK(use_on_two_streams(by_event) == 0);
    CHECK(use_on_two_streams(through_a_third_stream) == 0);
    CHECK(use_on_two_streams(by_the_host) == 0);
    CHECK(use_on_two_streams(by_a_value) == 0);
}

static void test_the_default_stream_and_blocking_ones_need_no_event(void)
{
    start(NULL);
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    CUdeviceptr addr = allocate(PAGE);
    for (int i = 0; i < 2; i++) {
        CHECK(oomph_sim_launch(blocking, addr, 4096, 1, 1000) == CUDA_SUCCESS);
        CHECK(oomph_sim_launch(NULL, addr, 4096, 1, 1000) == CUDA_SUCCESS);
    }
    CHECK(stats().misuse_count == 0);
}

static void test_two_streams_may_read_side_by_side(void)
{
    start(NULL);
    CUdeviceptr addr = allocate(PAGE);
    for (int i = 0; i < 2; i++)
        CHECK(oomph_sim_launch(make_stream(CU_STREAM_NON_BLOCKING), addr, 4096, 0,
                               1000) == CUDA_SUCCESS);
    CHECK(stats().misuse_count == 0);
}

// The first of two streams works for long; then each waits for the other, `rungs`
// times.
static void climb(CUstream first, CUstream second, int rungs)
{
    kernel(first, 1000000);
    for (int i = 0; i < rungs; i++) {
        by_event(first, second);
        by_event(second, first);
    }
}

static void test_two_streams_may_wait_for_each_other_many_times(void)
{
    start(NULL);
    CUstream first = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream second = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream third = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    CHECK(oomph_sim_launch(third, addr, 4096, 0, 1000000) == CUDA_SUCCESS);
    climb(first, second, 200);
    CHECK(oomph_sim_launch(second, addr, 4096, 1, 10) == CUDA_SUCCESS);
    CHECK(stats().misuse_count == 1);
    by_event(third, first);
    by_event(first, second);
    CHECK(oomph_sim_launch(second, addr, 4096, 1, 10) == CUDA_SUCCESS);
    CHECK(stats().misuse_count == 1);
}

static void test_a_stream_is_waited_for_up_to_the_event_alone(void)
{
    start(NULL);
    CUstream writer = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream reader = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    kernel(writer, 100000);
    by_event(writer, reader);
    CHECK(oomph_sim_launch(writer, addr, 4096, 1, 10) == CUDA_SUCCESS);
    CHECK(oomph_sim_launch(reader, addr, 4096, 0, 10) == CUDA_SUCCESS);
    CHECK(stats().misuse_count == 1);
}

static void
test_a_value_that_a_stream_waits_for_is_not_written_by_its_own_later_work(void)
{
    start(NULL);
    CUstream waiting = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream reader = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr flag = allocate(PAGE), addr = allocate(PAGE);
    OK(cuMemsetD8(flag, 0, 4));
    OK(cuStreamWaitValue32(waiting, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    by_event(waiting, reader);
    CHECK(oomph_sim_launch(waiting, addr, 4096, 1, 10) == CUDA_SUCCESS);
    CHECK(oomph_sim_launch(reader, addr, 4096, 0, 10) == CUDA_SUCCESS);
    CHECK(stats().misuse_count == 1);
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamWriteValue32(other, flag, 1, 0));
}

int main(void)
{
    run(test_using_memory_on_two_streams_side_by_side_is_a_misuse);
    run(test_using_memory_on_two_streams_in_order_is_none);
    run(test_the_default_stream_and_blocking_ones_need_no_event);
    run(test_two_streams_may_read_side_by_side);
    run(test_two_streams_may_wait_for_each_other_many_times);
    run(test_a_stream_is_waited_for_up_to_the_event_alone);
    run(test_a_value_that_a_stream_waits_for_is_not_written_by_its_own_later_work);
    return finish();
}
