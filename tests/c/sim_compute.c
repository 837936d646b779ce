/* Work that computes: functions of the host that stand for kernels. */
#include "sim_check.h"

typedef struct adder {
    uint64_t *to;
    uint64_t from;
    int runs, releases, result;
} adder_t;

static int add(void *argument)
{
    adder_t *adder = argument;

    *adder->to += adder->from;
    adder->runs++;
    return adder->result;
}

static void release(void *argument)
{
    ((adder_t *)argument)->releases++;
}

// Adds to the value at an address when the stream comes to it.
static int compute(CUstream stream, CUdeviceptr addr, adder_t *adder)
{
    const oomph_sim_range_t range = {addr, sizeof(uint64_t), 1};
    const oomph_sim_compute_t what = {"add", &range, 1, add, release, adder, 0, 0};

    adder->to = (uint64_t *)(uintptr_t)addr; // memory is real
    return oomph_sim_compute(&what, stream);
}

static void test_computations_run_in_the_order_of_their_stream(void)
{
    uint64_t value = 5;
    adder_t adder = {.from = 3};

    start("1GiB,memory=real");
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(4096);
    OK(cuMemcpyHtoD(addr, &value, sizeof value));
    oomph_sim_hold(stream);
    CHECK(compute(stream, addr, &adder) == 0);
    OK(cuMemcpyDtoHAsync(&value, addr, sizeof value, 0));
    CHECK(value == 5 && adder.runs == 0);
    oomph_sim_release(stream);
    OK(cuStreamSynchronize(stream));
    CHECK(adder.runs == 1 && adder.releases == 1);
    OK(cuMemcpyDtoH(&value, addr, sizeof value));
    CHECK(value == 8);
}

static void test_a_computation_that_fails_breaks_the_context(void)
{
    adder_t adder = {.result = 1};

    start("1GiB,memory=real");
    CUdeviceptr addr = allocate(4096);
    CHECK(compute(0, addr, &adder) == 0);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ASSERT);
    CHECK(adder.releases == 1);
}

static void test_a_computation_in_unmapped_memory_is_misuse(void)
{
    CUdeviceptr addr;
    adder_t adder = {0};

    start("1GiB,memory=real");
    OK(cuMemAddressReserve(&addr, (size_t)2 << 20, 0, 0, 0));
    CHECK(compute(0, addr, &adder) == 0);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(adder.runs == 0 && adder.releases == 1);
    CHECK(strstr(oomph_sim_misuse(0), "add of device 0 writes") != NULL);
}

static void test_computations_that_race_are_misuse(void)
{
    adder_t first = {0}, second = {0};

    start("1GiB,memory=real");
    CUstream one = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream two = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(0);
    CUdeviceptr addr = allocate(4096);
    oomph_sim_hold(one);
    CHECK(compute(one, addr, &first) == 0);
    OK(cuEventRecord(event, one));
    CHECK(compute(two, addr + 8, &second) == 0); // beside it, not the same memory
    OK(cuStreamSynchronize(two));
    CHECK(oomph_sim_misuse(0) == NULL);
    CHECK(compute(two, addr, &second) == 0);
    OK(cuStreamSynchronize(two));
    CHECK(strstr(oomph_sim_misuse(0), "does not wait for a pending add of stream") !=
          NULL);
    oomph_sim_release(one);
    OK(cuStreamSynchronize(one));
}

static void test_computations_in_order_do_not_race(void)
{
    adder_t first = {0}, second = {0};

    start("1GiB,memory=real");
    CUstream one = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream two = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(0);
    CUdeviceptr addr = allocate(4096);
    CHECK(compute(one, addr, &first) == 0);
    OK(cuEventRecord(event, one));
    OK(cuStreamWaitEvent(two, event, 0));
    CHECK(compute(two, addr, &second) == 0);
    CHECK(compute(two, addr, &second) == 0);
    OK(cuCtxSynchronize());
    CHECK(first.runs == 1 && second.runs == 2 && oomph_sim_misuse(0) == NULL);
}

static void test_a_graph_computes_at_each_replay(void)
{
    CUgraph graph;
    CUgraphExec exec;
    uint64_t value = 0;
    adder_t adder = {.from = 2};

    start("1GiB,memory=real");
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(4096);
    OK(cuMemcpyHtoD(addr, &value, sizeof value));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(compute(stream, addr, &adder) == 0);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&value, addr, sizeof value));
    CHECK(value == 6 && adder.runs == 3 && adder.releases == 0);
    OK(cuGraphExecDestroy(exec));
    CHECK(adder.releases == 1);
}

static void test_dry_calls_move_nothing(void)
{
    uint64_t value = 5, other = 7;

    start("1GiB,memory=real");
    CUdeviceptr addr = allocate(4096);
    OK(cuMemcpyHtoD(addr, &value, sizeof value));
    oomph_sim_dry(1);
    OK(cuMemcpyHtoD(addr, &other, sizeof other));
    OK(cuMemsetD8(addr, 1, 8));
    OK(cuMemcpyDtoH(&other, addr, sizeof other));
    oomph_sim_dry(-1);
    CHECK(other == 0);
    OK(cuMemcpyDtoH(&value, addr, sizeof value));
    CHECK(value == 5);
}

int main(void)
{
    run(test_computations_run_in_the_order_of_their_stream);
    run(test_a_computation_that_fails_breaks_the_context);
    run(test_a_computation_in_unmapped_memory_is_misuse);
    run(test_computations_that_race_are_misuse);
    run(test_computations_in_order_do_not_race);
    run(test_a_graph_computes_at_each_replay);
    run(test_dry_calls_move_nothing);
    return finish();
}
