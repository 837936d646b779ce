/* The control interface: failures on demand, reports, the life of the driver, entry
 * points.
 */
#include "sim_check.h"

#include <stdint.h>

static void test_calls_fail_before_initialisation(void)
{
    int count;

    oomph_sim_reset();
    CHECK_RESULT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_RESULT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
}

static void test_calls_fail_at_the_end_of_the_process(void)
{
    start(NULL);
    oomph_sim_deinit();
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_DEINITIALIZED);
    CHECK_RESULT(cuMemFree(123), CUDA_ERROR_DEINITIALIZED);
    start(NULL);
    OK(cuCtxSynchronize());
}

static int exit_code_of_child(int (*body)(void))
{
    int status;
    pid_t child = fork();

    if (child == 0)
        _exit(body());
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int use_the_driver(void)
{
    return (int)cuInit(0) * 10 + (int)cuCtxSynchronize();
}

static int start_afresh(void)
{
    return (int)cuInit(0);
}

static void test_a_forked_child_cannot_use_the_driver(void)
{
    start(NULL);
    CHECK(exit_code_of_child(use_the_driver) == 33); // NOT_INITIALIZED twice
    OK(cuCtxSynchronize());
}

static void test_a_child_forked_before_initialisation_can(void)
{
    oomph_sim_reset();
    CHECK(exit_code_of_child(start_afresh) == 0);
}

static void test_the_nth_call_fails_and_changes_nothing(void)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;

    start(NULL);
    CHECK(oomph_sim_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY) == 0);
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    CHECK_RESULT(cuMemCreate(&handle, PAGE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(stats().used_bytes == PAGE);
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    CHECK(oomph_sim_call_count("cuMemCreate") == 3);
    CHECK(stats().misuse_count == 0);
}

static void test_every_call_fails_until_failures_are_cleared(void)
{
    CUdeviceptr addr;

    start(NULL);
    CHECK(oomph_sim_fail("cuMemAlloc", 0, CUDA_ERROR_UNKNOWN) == 0);
    CHECK_RESULT(cuMemAlloc(&addr, PAGE), CUDA_ERROR_UNKNOWN);
    CHECK_RESULT(cuMemAlloc(&addr, PAGE), CUDA_ERROR_UNKNOWN);
    oomph_sim_clear_failures();
    OK(cuMemAlloc(&addr, PAGE));
    CHECK(oomph_sim_call_count("cuMemAlloc_v2") == 3); // the version does not matter
}

static void test_a_call_of_any_name_fails(void)
{
    CUdeviceptr addr;
    const char *text;

    start(NULL);
    uint64_t before = oomph_sim_call_count(NULL);
    oomph_sim_fail_nth_call(3, CUDA_ERROR_UNKNOWN);
    OK(cuMemAddressReserve(&addr, PAGE, 0, 0, 0));
    OK(cuGetErrorString(CUDA_SUCCESS, &text)); // does not count
    OK(cuMemAddressFree(addr, PAGE));
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
    OK(cuCtxSynchronize());
    CHECK(oomph_sim_call_count(NULL) == before + 4);
}

static void test_only_so_many_failures_can_be_set(void)
{
    start(NULL);
    for (int i = 0; i < 64; i++)
        CHECK(oomph_sim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN) == 0);
    CHECK(oomph_sim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN) != 0);
}

static void test_the_last_misuses_are_kept(void)
{
    start(NULL);
    CHECK(oomph_sim_misuse(0) == NULL);
    for (CUmemGenericAllocationHandle handle = 1; handle <= 20; handle++)
        CHECK_RESULT(cuMemRelease(handle << 8), CUDA_ERROR_INVALID_VALUE);
    CHECK(stats().misuse_count == 20);
    CHECK(strstr(oomph_sim_misuse(0), "cuMemRelease: handle 0x1400") != NULL);
    CHECK(strstr(oomph_sim_misuse(15), "handle 0x500 ") != NULL);
    CHECK(oomph_sim_misuse(16) == NULL);
}

static void test_what_is_not_supported_is_remembered_by_name(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemFabricHandle fabric;

    start("1GiB,kernels=error");
    handle = create(on_device(0), PAGE);
    CHECK_RESULT(
        cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
        CUDA_ERROR_NOT_SUPPORTED);
    CHECK(strcmp(oomph_sim_unsupported(0), "cuMemExportToShareableHandle") == 0);
    CHECK(oomph_sim_unsupported_count() == 1);
    CHECK_RESULT(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
                 CUDA_ERROR_NOT_SUPPORTED);
    CHECK(stats().misuse_count == 0);
}

static void test_the_text_of_an_error_names_the_call_that_is_not_supported(void)
{
    CUmemGenericAllocationHandle handle;
    const char *text;
    CUmemFabricHandle fabric;

    start("1GiB");
    handle = create(on_device(0), PAGE);
    CHECK_RESULT(
        cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
        CUDA_ERROR_NOT_SUPPORTED);
    OK(cuGetErrorString(CUDA_ERROR_NOT_SUPPORTED, &text));
    CHECK(strcmp(text, "operation not supported: cuMemExportToShareableHandle is not "
                       "part of the simulated GPU") == 0);
    OK(cuMemRelease(handle)); // who did not look at the result may ask later
    OK(cuGetErrorString(CUDA_ERROR_NOT_SUPPORTED, &text));
    CHECK(strstr(text, "cuMemExportToShareableHandle") != NULL);
}

static void test_with_values_a_kernel_that_nothing_computes_is_refused_by_name(void)
{
    CUmodule module;
    CUfunction function;
    const char *text;

    start("1GiB,memory=values");
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "scale_rows"));
    CHECK_RESULT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
                 CUDA_ERROR_NOT_SUPPORTED);
    OK(cuGetErrorString(CUDA_ERROR_NOT_SUPPORTED, &text));
    CHECK(strstr(text, "cannot compute scale_rows") != NULL);
    CHECK(strcmp(oomph_sim_unsupported(0), "scale_rows") == 0);
    oomph_sim_dry(1); // something else stands for it
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    oomph_sim_dry(-1);
}

static void test_a_sleep_keeps_its_stream_busy(void)
{
    start("1GiB,tick=0");
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    OK(oomph_sim_sleep(stream, 1000));
    oomph_sim_advance(999);
    CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    oomph_sim_advance(1);
    OK(cuStreamQuery(stream));
}

static void test_the_trace_names_calls_arguments_and_results(void)
{
    char path[] = "/tmp/sim_controlXXXXXX", text[4096] = "";
    int file = mkstemp(path);

    start("1GiB");
    CHECK(oomph_sim_log(path) == 0);
    OK(cuMemRelease(create(on_device(0), PAGE)));
    CHECK_RESULT(cuMemRelease(77), CUDA_ERROR_INVALID_VALUE);
    CHECK(oomph_sim_log(NULL) == 0);
    CHECK(read(file, text, sizeof text - 1) > 0);
    CHECK(strstr(text, "2097152, 1:0) = CUDA_SUCCESS") != NULL);
    CHECK(strstr(text, "misuse: cuMemRelease: handle 0x4d") != NULL);
    CHECK(strstr(text, "cuMemRelease(0x4d) = CUDA_ERROR_INVALID_VALUE") != NULL);
    CHECK(oomph_sim_log("/nonexistent/file") != 0);
    close(file);
    unlink(path);
}

static void test_a_reset_frees_what_was_leaked(void)
{
    void *pinned;

    start(NULL);
    map_open(reserve(PAGE), PAGE, create(on_device(0), PAGE));
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemHostAlloc(&pinned, PAGE, 0));
    CUstream stream = make_stream(0);
    CUevent event = make_event(0);
    OK(cuMemsetD8Async(addr, 1, PAGE, stream));
    oomph_sim_hold(stream);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(cuMemRelease(1), CUDA_ERROR_INVALID_VALUE);
    start(NULL);
    oomph_sim_stats_t now = stats();
    CHECK(now.used_bytes == 0 && now.handle_count == 0 && now.mapping_count == 0);
    CHECK(now.reservation_count == 0 && now.pinned_bytes == 0 &&
          now.pending_count == 0);
    CHECK(now.misuse_count == 0 && oomph_sim_misuse(0) == NULL);
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

typedef CUresult (*get_device_t)(CUdevice *);
typedef CUresult (*get_device_13_t)(CUdevice *, CUcontext);

static void *entry(const char *name, int version,
                   CUdriverProcAddressQueryResult expected)
{
    CUdriverProcAddressQueryResult status;
    void *function = &status;

    OK(cuGetProcAddress(name, &function, version, 0, &status));
    CHECK(status == expected);
    CHECK((function != NULL) == (expected == CU_GET_PROC_ADDRESS_SUCCESS));
    return function;
}

static void test_entry_points_follow_the_version_that_is_asked_for(void)
{
    get_device_t get_device;
    get_device_13_t get_device_13;
    CUdevice device = 7;
    void *function;

    start(NULL);
    function = entry("cuCtxGetDevice", 12000, CU_GET_PROC_ADDRESS_SUCCESS);
    memcpy(&get_device, &function, sizeof function);
    OK(get_device(&device));
    CHECK(device == 0);
    function = entry("cuCtxGetDevice", 13000, CU_GET_PROC_ADDRESS_SUCCESS);
    memcpy(&get_device_13, &function, sizeof function);
    CHECK((uintptr_t)get_device_13 != (uintptr_t)get_device);
    OK(get_device_13(&device, NULL));
    CHECK(entry("cuStreamGetCaptureInfo", 10010, CU_GET_PROC_ADDRESS_SUCCESS) !=
          entry("cuStreamGetCaptureInfo", 12030, CU_GET_PROC_ADDRESS_SUCCESS));
    entry("cuMemMap", 10000, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    entry("cuNoSuchCall", 12000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    entry("cuMemAlloc_v2", 12000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK_RESULT(cuGetProcAddress("cuMemMap", &function, 13010, 0, NULL),
                 CUDA_ERROR_INVALID_VALUE);
}

static int uses; // calls of describe_again()

static void describe_again(void)
{
    uses++;
    CHECK(oomph_sim_configure("3GiB") == 0);
}

static void test_the_card_can_be_exchanged_just_before_it_is_used(void)
{
    int count;
    size_t bytes;

    oomph_sim_reset();
    CHECK(oomph_sim_configure("1GiB") == 0);
    uses = 0;
    oomph_sim_before_use(describe_again);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(uses == 0);
    OK(cuDeviceTotalMem(&bytes, 0));
    CHECK(uses == 1 && bytes == (size_t)3 << 30);
    OK(cuDeviceTotalMem(&bytes, 0));
    CHECK(uses == 1);
}

static void test_an_older_driver_lacks_newer_calls(void)
{
    start("1GiB,driver=11080");
    entry("cuMemMap", 11080, CU_GET_PROC_ADDRESS_SUCCESS);
    entry("cuStreamGetId", 11080, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

int main(void)
{
    run(test_calls_fail_before_initialisation);
    run(test_calls_fail_at_the_end_of_the_process);
    run(test_a_forked_child_cannot_use_the_driver);
    run(test_a_child_forked_before_initialisation_can);
    run(test_the_nth_call_fails_and_changes_nothing);
    run(test_every_call_fails_until_failures_are_cleared);
    run(test_a_call_of_any_name_fails);
    run(test_only_so_many_failures_can_be_set);
    run(test_the_last_misuses_are_kept);
    run(test_what_is_not_supported_is_remembered_by_name);
    run(test_the_text_of_an_error_names_the_call_that_is_not_supported);
    run(test_with_values_a_kernel_that_nothing_computes_is_refused_by_name);
    run(test_a_sleep_keeps_its_stream_busy);
    run(test_the_trace_names_calls_arguments_and_results);
    run(test_a_reset_frees_what_was_leaked);
    run(test_entry_points_follow_the_version_that_is_asked_for);
    run(test_an_older_driver_lacks_newer_calls);
    run(test_the_card_can_be_exchanged_just_before_it_is_used);
    return finish();
}
