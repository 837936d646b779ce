/* The time that copies and operators take: engines, rates, host pages. */
#include "sim_check.h"

enum { MB = 1000000 };

static oomph_sim_usage_t usage_of(int device)
{
    oomph_sim_usage_t usage;

    CHECK(oomph_sim_usage(device, &usage) == 0);
    return usage;
}

// The virtual time until all work of the context is done.
static double ms_of_all(void)
{
    uint64_t before = oomph_sim_now_ns();

    OK(cuCtxSynchronize());
    return (double)(oomph_sim_now_ns() - before) / 1e6;
}

static bool is_about(double value, double wanted)
{
    bool good = value > wanted * 0.999 - 0.01 && value < wanted * 1.001 + 0.01;

    if (!good)
        fprintf(stderr, "%g, not about %g\n", value, wanted);
    return good;
}

// The card of most tests: round numbers, so that times are easy to tell.
static const char CARD[] =
    "1GiB,gpu=a100-40gb,memory=none,tick=0,context=0,link=10GB/s,bandwidth=1000GB/s,"
    "fp32=10TFLOPS,bf16=100TFLOPS,flops-share=1,bandwidth-share=1,launch=0";

// ---- copies

static void test_copies_in_one_direction_take_turns(void)
{
    start("1GiB,link=10GB/s,memory=none,tick=0");
    CUdeviceptr addr = allocate(200 * MB);
    char *host = pin(200 * MB);
    CUstream one = make_stream(CU_STREAM_NON_BLOCKING),
             two = make_stream(CU_STREAM_NON_BLOCKING);

    OK(cuMemcpyHtoDAsync(addr, host, 100 * MB, one));
    OK(cuMemcpyHtoDAsync(addr + 100 * MB, host + 100 * MB, 100 * MB, two));
    CHECK(is_about(ms_of_all(), 20));
    CHECK(usage_of(0).h2d_bytes == 200 * MB && usage_of(0).d2h_bytes == 0);
    CHECK(is_about((double)usage_of(0).h2d_busy_ns / 1e6, 20));
}

static void test_copies_in_both_directions_run_at_once(void)
{
    start("1GiB,link=10GB/s,memory=none,tick=0");
    CUdeviceptr addr = allocate(200 * MB);
    char *host = pin(200 * MB);
    CUstream one = make_stream(CU_STREAM_NON_BLOCKING),
             two = make_stream(CU_STREAM_NON_BLOCKING);

    OK(cuMemcpyHtoDAsync(addr, host, 100 * MB, one));
    OK(cuMemcpyDtoHAsync(host + 100 * MB, addr + 100 * MB, 100 * MB, two));
    CHECK(is_about(ms_of_all(), 10));
    CHECK(usage_of(0).h2d_bytes == 100 * MB && usage_of(0).d2h_bytes == 100 * MB);
}

static void test_each_device_has_engines_of_its_own(void)
{
    CUcontext other;

    start("1GiB,devices=2,link=10GB/s,memory=none,tick=0");
    CUdeviceptr here = allocate(100 * MB);
    char *host = pin(200 * MB);
    OK(cuMemcpyHtoDAsync(here, host, 100 * MB, make_stream(CU_STREAM_NON_BLOCKING)));
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxSetCurrent(other));
    CUdeviceptr there = allocate(100 * MB);
    OK(cuMemcpyHtoDAsync(there, host + 100 * MB, 100 * MB,
                         make_stream(CU_STREAM_NON_BLOCKING)));
    CHECK(is_about(ms_of_all(), 10));
    CHECK(oomph_sim_usage(2, &(oomph_sim_usage_t){0}) == 1);
}

static void test_a_copy_between_devices_leaves_one_and_comes_to_the_other(void)
{
    CUcontext other;

    start("1GiB,devices=2,link=10GB/s,memory=none,tick=0");
    CUdeviceptr here = allocate(100 * MB);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxSetCurrent(other));
    CUdeviceptr there = allocate(100 * MB);
    OK(cuMemcpyDtoDAsync(there, here, 100 * MB, make_stream(CU_STREAM_NON_BLOCKING)));
    CHECK(is_about(ms_of_all(), 10));
    CHECK(usage_of(0).d2h_bytes == 100 * MB && usage_of(0).h2d_bytes == 0);
    CHECK(usage_of(1).h2d_bytes == 100 * MB && usage_of(1).d2h_bytes == 0);
}

static void test_a_copy_waits_for_the_engine_and_not_for_its_stream_alone(void)
{
    start("1GiB,link=10GB/s,memory=none,tick=0");
    CUdeviceptr addr = allocate(200 * MB);
    char *host = pin(200 * MB);
    CUstream one = make_stream(CU_STREAM_NON_BLOCKING),
             two = make_stream(CU_STREAM_NON_BLOCKING);

    OK(cuMemcpyHtoDAsync(addr, host, 100 * MB, one));
    OK(cuMemcpyHtoDAsync(addr + 100 * MB, host, 10 * MB, two));
    oomph_sim_advance(10500000);
    CHECK_RESULT(cuStreamQuery(one), CUDA_SUCCESS);
    CHECK_RESULT(cuStreamQuery(two), CUDA_ERROR_NOT_READY);
    oomph_sim_advance(1000000);
    CHECK_RESULT(cuStreamQuery(two), CUDA_SUCCESS);
}

// ---- operators

static oomph_sim_use_t use_of(CUdeviceptr addr, size_t bytes, size_t read,
                              size_t written)
{
    return (oomph_sim_use_t){addr, bytes, read, written, 0, 0};
}

static void report(CUstream stream, double flops, oomph_sim_precision_t precision,
                   const oomph_sim_use_t *uses, size_t count)
{
    const oomph_sim_cost_t cost = {"mm", flops, precision, 0, {0}, uses, count};

    CHECK(oomph_sim_cost(&cost, stream) == 0);
}

static void test_an_operator_takes_the_slower_of_arithmetic_and_memory(void)
{
    start(CARD);
    CUdeviceptr addr = allocate(500 * MB);
    const oomph_sim_use_t read = {
        .addr = addr, .bytes = 500 * MB, .read_bytes = 500 * MB};

    report(0, 1e12, OOMPH_SIM_BF16, NULL, 0);
    CHECK(is_about(ms_of_all(), 10));
    report(0, 1e12, OOMPH_SIM_FP32, NULL, 0);
    CHECK(is_about(ms_of_all(), 100));
    report(0, 0, OOMPH_SIM_FP32, &read, 1);
    CHECK(is_about(ms_of_all(), 0.5));
    report(0, 1e12, OOMPH_SIM_BF16, &read, 1);
    CHECK(is_about(ms_of_all(), 10));
    CHECK(usage_of(0).flops == 3e12 && usage_of(0).operator_count == 4);
    CHECK(usage_of(0).device_bytes == 1000.0 * MB);
    CHECK(is_about((double)usage_of(0).compute_busy_ns / 1e6, 120.5));
}

static void test_what_kernels_reach_of_the_peaks_is_a_setting(void)
{
    start("1GiB,gpu=t4,tick=0,fp16=100TFLOPS,bandwidth=1000GB/s,flops-share=0.5,"
          "bandwidth-share=0.8,launch=100us");
    CUdeviceptr addr = allocate(400 * MB);
    const oomph_sim_use_t written = {
        .addr = addr, .bytes = 400 * MB, .read_bytes = 0, .written_bytes = 400 * MB};

    report(0, 1e12, OOMPH_SIM_FP16, NULL, 0);
    CHECK(is_about(ms_of_all(), 20.1));
    report(0, 0, OOMPH_SIM_FP16, &written, 1);
    CHECK(is_about(ms_of_all(), 0.6));
}

static void test_multiprocessors_do_so_much_in_a_cycle(void)
{
    const oomph_sim_cost_t cost = {.name = "mul", .accesses = 1e9};

    start("1GiB,gpu=a100-40gb,tick=0,sms=1,sm-bytes=10,sm-accesses=20,launch=0");
    const oomph_sim_use_t read = use_of(allocate(100 * MB), 100 * MB, 100 * MB, 0);
    CHECK(oomph_sim_cost(&cost, 0) == 0);
    CHECK(is_about(ms_of_all(), 1e3 / (20 * 1.4106))); // 1.41 GHz
    report(0, 0, OOMPH_SIM_FP32, &read, 1);
    CHECK(is_about(ms_of_all(), 100 / (10 * 1.4106)));
}

// Reads 100 MB in threads of which a tenth are in work at once.
static double ms_of_rows(const char *l2, uint64_t again, uint64_t reread)
{
    char card[256];

    snprintf(card, sizeof card, "%s,sms=10,sm-bytes=1000,l2-share=1,l2=%s", CARD, l2);
    start(card);
    const oomph_sim_use_t use = {
        allocate(100 * MB), 100 * MB, 100 * MB, 0, again, reread};
    const oomph_sim_cost_t cost = {
        .name = "layer_norm",
        .launched = {.kernel_count = 1, .threads = 204800, .block_threads = 256},
        .uses = &use,
        .use_count = 1};
    CHECK(oomph_sim_cost(&cost, 0) == 0);
    return ms_of_all();
}

static void test_what_is_read_again_counts_only_where_the_cache_is_too_small(void)
{
    CHECK(is_about(ms_of_rows("11MB", 0, 100 * MB), 0.1));
    CHECK(is_about(ms_of_rows("9MB", 0, 100 * MB), 0.2));
    CHECK(is_about(ms_of_rows("110MB", 100 * MB, 0), 0.1)); // by a later kernel
    CHECK(is_about(ms_of_rows("90MB", 100 * MB, 0), 0.2));
}

static void test_the_host_takes_its_time_for_each_outermost_operator(void)
{
    const oomph_sim_launched_t none = {0}, one = {1, 256, 128};

    start("1GiB,gpu=t4,tick=0,dispatch=30us");
    uint64_t before = oomph_sim_now_ns();
    oomph_sim_operator(1, none);
    oomph_sim_operator(1, none);
    OK(cuLaunchKernel(NULL, 2, 1, 1, 128, 1, 1, 0, 0, NULL, NULL));
    CHECK(oomph_sim_operator(-1, one).threads == 256);
    CHECK(oomph_sim_now_ns() == before);
    CHECK(oomph_sim_operator(-1, none).kernel_count == 1);
    CHECK(oomph_sim_now_ns() == before + 30000);
}

static void test_kernels_of_different_streams_take_turns(void)
{
    start(CARD);
    report(make_stream(CU_STREAM_NON_BLOCKING), 1e12, OOMPH_SIM_BF16, NULL, 0);
    report(make_stream(CU_STREAM_NON_BLOCKING), 1e12, OOMPH_SIM_BF16, NULL, 0);
    CHECK(is_about(ms_of_all(), 20));
}

static void test_kernels_and_copies_run_at_once(void)
{
    start(CARD);
    CUdeviceptr addr = allocate(100 * MB);
    void *host = pin(100 * MB);

    report(make_stream(CU_STREAM_NON_BLOCKING), 1e12, OOMPH_SIM_BF16, NULL, 0);
    OK(cuMemcpyHtoDAsync(addr, host, 100 * MB, make_stream(CU_STREAM_NON_BLOCKING)));
    CHECK(is_about(ms_of_all(), 10));
}

// Device pages and then as many of the host, mapped side by side.
static CUdeviceptr half_on_host(size_t bytes)
{
    CUdeviceptr addr = reserve(2 * bytes);

    map_open(addr, bytes, create(on_device(0), bytes));
    map_open(addr + bytes, bytes, create(on_host(), bytes));
    return addr;
}

static void test_what_lies_on_host_pages_is_moved_at_the_speed_of_the_link(void)
{
    start(CARD);
    const size_t bytes = 50 * PAGE;
    const double ms = (double)bytes / 1e7; // over the link
    CUdeviceptr addr = half_on_host(bytes);
    const oomph_sim_use_t all = {
        .addr = addr, .bytes = 2 * bytes, .read_bytes = 2 * bytes, .written_bytes = 0};
    const oomph_sim_use_t on_device = {
        .addr = addr, .bytes = bytes, .read_bytes = bytes, .written_bytes = bytes};
    const oomph_sim_use_t both_ways = use_of(addr + bytes, bytes, bytes, bytes);

    report(0, 0, OOMPH_SIM_FP32, &all, 1);
    CHECK(is_about(ms_of_all(), ms));
    CHECK(usage_of(0).h2d_bytes == bytes && usage_of(0).d2h_bytes == 0);
    CHECK(usage_of(0).device_bytes == (double)bytes);
    report(0, 0, OOMPH_SIM_FP32, &on_device, 1);
    CHECK(is_about(ms_of_all(), 2 * ms / 100));
    report(0, 0, OOMPH_SIM_FP32, &both_ways, 1);
    CHECK(is_about(ms_of_all(), ms)); // both directions at once
    CHECK(usage_of(0).h2d_bytes == 2 * bytes && usage_of(0).d2h_bytes == bytes);
}

static void test_a_view_moves_its_share_of_what_lies_on_the_host(void)
{
    start(CARD);
    const size_t bytes = 50 * PAGE;
    CUdeviceptr addr = half_on_host(bytes);
    const oomph_sim_use_t every_fourth = {
        .addr = addr, .bytes = 2 * bytes, .read_bytes = bytes / 2, .written_bytes = 0};

    report(0, 0, OOMPH_SIM_FP32, &every_fourth, 1);
    ms_of_all();
    CHECK(usage_of(0).h2d_bytes == bytes / 4);
    CHECK(usage_of(0).device_bytes == (double)bytes / 4);
}

static void test_kernels_take_turns_on_the_link_with_copies(void)
{
    start(CARD);
    const size_t bytes = 50 * PAGE;
    const double ms = (double)bytes / 1e7;
    CUdeviceptr on_link = half_on_host(bytes) + bytes, addr = allocate(bytes);
    void *host = pin(bytes);
    const oomph_sim_use_t read = {
        .addr = on_link, .bytes = bytes, .read_bytes = bytes, .written_bytes = 0};
    const oomph_sim_use_t written = {
        .addr = on_link, .bytes = bytes, .read_bytes = 0, .written_bytes = bytes};

    OK(cuMemcpyHtoDAsync(addr, host, bytes, make_stream(CU_STREAM_NON_BLOCKING)));
    report(make_stream(CU_STREAM_NON_BLOCKING), 0, OOMPH_SIM_FP32, &read, 1);
    CHECK(is_about(ms_of_all(), 2 * ms));
    OK(cuMemcpyHtoDAsync(addr, host, bytes, make_stream(CU_STREAM_NON_BLOCKING)));
    report(make_stream(CU_STREAM_NON_BLOCKING), 0, OOMPH_SIM_FP32, &written, 1);
    CHECK(is_about(ms_of_all(), ms)); // in the other direction
}

static void test_a_kernel_that_waits_for_another_comes_to_the_link_later(void)
{
    start(CARD);
    const size_t bytes = 50 * PAGE;
    const double ms = (double)bytes / 1e7;
    CUdeviceptr on_link = half_on_host(bytes) + bytes, addr = allocate(bytes);
    const oomph_sim_use_t read = {
        .addr = on_link, .bytes = bytes, .read_bytes = bytes, .written_bytes = 0};

    report(make_stream(CU_STREAM_NON_BLOCKING), 1e12, OOMPH_SIM_BF16, NULL, 0); // 10 ms
    report(make_stream(CU_STREAM_NON_BLOCKING), 0, OOMPH_SIM_FP32, &read, 1);
    OK(cuMemcpyHtoDAsync(addr, pin(bytes), bytes, make_stream(CU_STREAM_NON_BLOCKING)));
    CHECK(is_about(ms_of_all(), 10 + 2 * ms));
}

static void test_where_memory_lies_counts_when_the_work_starts(void)
{
    start(CARD);
    const size_t bytes = 50 * PAGE;
    CUdeviceptr addr = reserve(bytes);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    const oomph_sim_use_t read = {
        .addr = addr, .bytes = bytes, .read_bytes = bytes, .written_bytes = 0};

    map_open(addr, bytes, create(on_host(), bytes));
    oomph_sim_hold(stream);
    report(stream, 0, OOMPH_SIM_FP32, &read, 1);
    OK(cuMemUnmap(addr, bytes));
    map_open(addr, bytes, create(on_device(0), bytes));
    oomph_sim_release(stream);
    OK(cuStreamSynchronize(stream));
    CHECK(usage_of(0).h2d_bytes == 0);
    CHECK(usage_of(0).device_bytes == (double)bytes);
}

static void test_a_replay_takes_the_time_of_what_was_captured(void)
{
    CUgraph graph;
    CUgraphExec exec;

    start(CARD);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report(stream, 1e12, OOMPH_SIM_BF16, NULL, 0);
    report(stream, 1e12, OOMPH_SIM_BF16, NULL, 0);
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(is_about(ms_of_all(), 0));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 2; i++)
        CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS && is_about(ms_of_all(), 20));
    OK(cuGraphExecDestroy(exec));
}

static void test_without_rates_an_operator_takes_no_time_of_its_own(void)
{
    start("1GiB,tick=0");
    report(0, 1e15, OOMPH_SIM_FP32, NULL, 0);
    CHECK(is_about(ms_of_all(), 0));
}

static void test_a_cost_of_unknown_precision_is_refused(void)
{
    start(CARD);
    const oomph_sim_cost_t cost = {
        .name = "mm", .flops = 1, .precision = OOMPH_SIM_PRECISIONS};

    CHECK(oomph_sim_cost(&cost, 0) == CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
    run(test_copies_in_one_direction_take_turns);
    run(test_copies_in_both_directions_run_at_once);
    run(test_each_device_has_engines_of_its_own);
    run(test_a_copy_between_devices_leaves_one_and_comes_to_the_other);
    run(test_a_copy_waits_for_the_engine_and_not_for_its_stream_alone);
    run(test_an_operator_takes_the_slower_of_arithmetic_and_memory);
    run(test_what_kernels_reach_of_the_peaks_is_a_setting);
    run(test_multiprocessors_do_so_much_in_a_cycle);
    run(test_what_is_read_again_counts_only_where_the_cache_is_too_small);
    run(test_the_host_takes_its_time_for_each_outermost_operator);
    run(test_kernels_of_different_streams_take_turns);
    run(test_kernels_and_copies_run_at_once);
    run(test_what_lies_on_host_pages_is_moved_at_the_speed_of_the_link);
    run(test_a_view_moves_its_share_of_what_lies_on_the_host);
    run(test_kernels_take_turns_on_the_link_with_copies);
    run(test_a_kernel_that_waits_for_another_comes_to_the_link_later);
    run(test_where_memory_lies_counts_when_the_work_starts);
    run(test_a_replay_takes_the_time_of_what_was_captured);
    run(test_without_rates_an_operator_takes_no_time_of_its_own);
    run(test_a_cost_of_unknown_precision_is_refused);
    return finish();
}
