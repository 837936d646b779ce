/* The control interface: the card's description, failures on demand, the life of the
 * driver, entry points.
 */
#include "sim_check.h"

#include <stdint.h>

static void allowed(const char *card)
{
    oomph_sim_reset();
    CHECK(oomph_sim_configure(card) == 0);
    CHECK(strcmp(oomph_sim_error(), "") == 0);
}

static void refused(const char *card, const char *why)
{
    oomph_sim_reset();
    CHECK(oomph_sim_configure(card) != 0);
    if (strstr(oomph_sim_error(), why) == NULL) {
        fprintf(stderr, "%s: %s\n", card, oomph_sim_error());
        exit(1);
    }
}

static void test_cards_are_described_in_many_ways(void)
{
    allowed("12GiB");
    allowed("12gib,link=25gb/s");
    allowed("11.69GiB,devices=16,host=128GB,link=25GB/s,cc=12.0,context=0");
    allowed("12884901888,memory=real,tick=0,kernels=error,host-pages=none");
    allowed("80GB,driver=11000,name=H100 PCIe,tick=1.5ms");
    allowed("rtx4090");
    allowed("RTX4090,host=64GiB");
    allowed("25393692672,gpu=NVIDIA GeForce RTX 4090"); // as CUDA names it
    allowed("12GiB,bandwidth=900GB/s,fp32=40TFLOPS,fp8=1.5PFLOPS,sms=46,gpu=rtx4090");
    allowed("a10,flops-share=0.5,bandwidth-share=1,launch=0");
}

static void test_wrong_descriptions_say_what_is_allowed(void)
{
    refused("", "must start with the memory");
    refused("devices=2", "must start with the memory");
    refused("12GiBs", "must start with the memory");
    refused("-1GiB", "must start with the memory");
    refused("1KiB", "at least 2MiB");
    refused("1GiB,speed=3", "unknown key 'speed'; allowed are: devices, host, link");
    refused("1GiB,devices=0", "devices=0 is not allowed; use 1 to 16");
    refused("1GiB,devices=2x", "devices=2x is not allowed");
    refused("1GiB,link=25GB", "link=25GB is not allowed");
    refused("1GiB,link=0GB/s", "is not allowed");
    refused("1GiB,cc=9", "cc=9 is not allowed");
    refused("1GiB,memory=fake", "none, real or values");
    refused("1GiB,tick=1h", "tick=1h is not allowed");
    refused("1GiB,kernels=run", "ignore or error");
    refused("1GiB,host-pages", "numa, host or none");
    refused("1GiB,rdma=maybe", "yes or no");
    refused("1GiB,driver=14000", "11000 to 13000");
    refused("1GiB,context=2GiB", "must leave some");
    refused("1GiB,name=", "name= is not allowed");
    refused("1GiB,gpu=rtx1", "gpu=rtx1 is not allowed; use t4, a10, l4, rtx3060");
    refused("1GiB,gpu", "gpu= is not allowed");
    refused("rtx1", "or with a GPU: t4, a10, l4, rtx3060");
    refused("1GiB,bandwidth=1GB/s", "bandwidth= needs a card: add gpu=");
    refused("1GiB,bf16=1TFLOPS", "bf16= needs a card: add gpu=");
    refused("t4,fp16=100", "fp16=100 is not allowed; use a speed, such as");
    refused("t4,fp16=0TFLOPS", "is not allowed");
    refused("t4,flops-share=1.1", "a number above 0, up to 1");
    refused("t4,bandwidth-share=0", "a number above 0, up to 1");
    refused("t4,sms=0", "1 to 1024");
}

static void test_a_description_can_be_asked_about(void)
{
    oomph_sim_card_t card;

    start("1GiB");
    CHECK(oomph_sim_describe("2GiB,devices=3", &card) == 0);
    CHECK(card.memory_bytes == 2ull << 30 && card.device_count == 3);
    CHECK(card.host_bytes == UINT64_MAX);
    CHECK(oomph_sim_describe("2GiB,host=1GiB", &card) == 0);
    CHECK(card.host_bytes == 1 << 30);
    CHECK(oomph_sim_describe("2GiB,speed=1", &card) != 0);
    CHECK(strstr(oomph_sim_error(), "unknown key 'speed'") != NULL);
    CHECK(stats().capacity_bytes == 1u << 30);
}

static int attribute(CUdevice_attribute name)
{
    int value;

    OK(cuDeviceGetAttribute(&value, name, 0));
    return value;
}

static void test_a_well_known_card_is_what_it_is_unless_the_description_differs(void)
{
    char name[96];

    start("rtx4090");
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strcmp(name, "NVIDIA GeForce RTX 4090") == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 9);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 128);
    CHECK(stats().capacity_bytes > 23ull << 30 && stats().capacity_bytes < 24ull << 30);
    start("12GiB,cc=8.6,name=mine,sms=7,gpu=rtx4090");
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strcmp(name, "mine") == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 6);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 7);
    CHECK(stats().capacity_bytes == 12ull << 30);
}

static void test_the_card_cannot_change_while_the_driver_is_in_use(void)
{
    start("1GiB");
    CHECK(oomph_sim_configure("2GiB") != 0);
    CHECK(strstr(oomph_sim_error(), "in use") != NULL);
    CHECK(stats().capacity_bytes == 1u << 30);
}

static void test_the_environment_describes_the_card(void)
{
    oomph_sim_reset();
    setenv("OOMPH_SIMULATE", "3GiB", 1);
    OK(cuInit(0));
    CHECK(stats().capacity_bytes == (uint64_t)3 << 30);
    unsetenv("OOMPH_SIMULATE");
}

static void test_a_wrong_environment_fails_the_initialisation(void)
{
    oomph_sim_reset();
    setenv("OOMPH_SIMULATE", "3 apples", 1);
    CHECK_RESULT(cuInit(0), CUDA_ERROR_INVALID_VALUE);
    CHECK(strstr(oomph_sim_error(), "3 apples") != NULL);
    unsetenv("OOMPH_SIMULATE");
}

// How many devices the program sees, and the bus of its first one.
static int visible_devices(const char *variable, int *first_bus)
{
    int count = 0;

    oomph_sim_reset();
    OK(oomph_sim_configure("1GiB,devices=3"));
    setenv("CUDA_VISIBLE_DEVICES", variable, 1);
    if (cuInit(0) == CUDA_SUCCESS) {
        OK(cuDeviceGetCount(&count));
        OK(cuDeviceGetAttribute(first_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    return count;
}

static void test_the_environment_says_which_devices_are_visible(void)
{
    CUdevice device = 9;
    char bus_id[16];
    int bus = 0;

    CHECK(visible_devices("0,1,2", &bus) == 3 && bus == 1);
    CHECK(visible_devices("1, 0", &bus) == 2 && bus == 2);
    CHECK(visible_devices("2,3,0", &bus) == 1 && bus == 3); // 3 ends the list
    OK(cuDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
    OK(cuDeviceGetByPCIBusId(&device, bus_id));
    CHECK(device == 0);
    CHECK_RESULT(cuDeviceGetByPCIBusId(&device, "0000:01:00.0"),
                 CUDA_ERROR_INVALID_DEVICE);
    CHECK(visible_devices("0,0", &bus) == 1);
    CHECK(visible_devices("", &bus) == 0);
    CHECK(visible_devices("-1", &bus) == 0);
    CHECK(visible_devices("GPU-0", &bus) == 0);
    CHECK_RESULT(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void test_the_default_card_is_large_and_real(void)
{
    start(NULL);
    CHECK(stats().capacity_bytes == (uint64_t)96 << 30);
    CHECK(oomph_sim_now_ns() == 0); // time stands still
}

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

static uint64_t read_back(CUdeviceptr addr)
{
    uint64_t value = 1;

    OK(cuMemcpyDtoH(&value, addr, sizeof value));
    return value;
}

static void test_what_the_host_wrote_is_known_until_a_kernel_runs(void)
{
    uint64_t values[2] = {5, 6};

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    CHECK(read_back(addr) == 0);
    OK(cuMemcpyHtoDAsync(addr, values, sizeof values, NULL));
    values[0] = 7; // pageable: it was read
    CHECK(read_back(addr) == 5 && read_back(addr + 8) == 6);
    CHECK(read_back(addr + 12) == 0); // not all of it is known
    CHECK(oomph_sim_launch(NULL, 0, 0, 0, 1000) == 0);
    OK(cuCtxSynchronize());
    CHECK(read_back(addr) == 0);
}

static void test_what_is_known_follows_copies_and_is_overwritten(void)
{
    uint64_t values[2] = {5, 6};

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyHtoD(addr, values, sizeof values));
    OK(cuMemcpyDtoD(addr + 1000, addr, sizeof values));
    OK(cuMemsetD8(addr, 1, 1));
    CHECK(read_back(addr) == 0 && read_back(addr + 1000) == 5);
    OK(cuMemcpyHtoD(addr + 1000, &values[1], 8));
    CHECK(read_back(addr + 1000) == 6);
    OK(cuMemcpyDtoD(addr + 1000, addr, 8)); // of what is not known
    CHECK(read_back(addr + 1000) == 0);
}

static void test_only_so_much_is_known(void)
{
    uint64_t values[1024] = {5};

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyHtoD(addr, values, sizeof values));
    CHECK(read_back(addr) == 0);
    for (uint64_t i = 1; i <= 1000; i++)
        OK(cuMemcpyHtoD(addr + 8 * i, &i, sizeof i));
    CHECK(read_back(addr + 8) == 0 && read_back(addr + 8000) == 1000);
}

static void test_copies_to_the_host_give_what_was_answered(void)
{
    uint64_t out[2] = {1, 1};
    char byte;

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyDtoH(out, addr, sizeof out));
    CHECK(out[0] == 0 && out[1] == 0);
    CHECK(oomph_sim_answer(1000) == 0);
    memset(out, 1, sizeof out);
    OK(cuMemcpyDtoH(out, addr, sizeof out));
    CHECK(out[0] == 1000 && out[1] == 0);
    CHECK(oomph_sim_answer(256) == 1000);
    OK(cuMemcpyDtoH(&byte, addr, 1));
    CHECK(byte == 1);
    oomph_sim_answer(0);
    OK(cuMemcpyDtoH(&byte, addr, 1));
    CHECK(byte == 0);
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

static void test_an_older_driver_lacks_newer_calls(void)
{
    start("1GiB,driver=11080");
    entry("cuMemMap", 11080, CU_GET_PROC_ADDRESS_SUCCESS);
    entry("cuStreamGetId", 11080, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

int main(void)
{
    run(test_cards_are_described_in_many_ways);
    run(test_wrong_descriptions_say_what_is_allowed);
    run(test_a_description_can_be_asked_about);
    run(test_a_well_known_card_is_what_it_is_unless_the_description_differs);
    run(test_the_card_cannot_change_while_the_driver_is_in_use);
    run(test_the_environment_describes_the_card);
    run(test_the_environment_says_which_devices_are_visible);
    run(test_a_wrong_environment_fails_the_initialisation);
    run(test_the_default_card_is_large_and_real);
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
    run(test_what_the_host_wrote_is_known_until_a_kernel_runs);
    run(test_what_is_known_follows_copies_and_is_overwritten);
    run(test_only_so_much_is_known);
    run(test_copies_to_the_host_give_what_was_answered);
    run(test_the_trace_names_calls_arguments_and_results);
    run(test_a_reset_frees_what_was_leaked);
    run(test_entry_points_follow_the_version_that_is_asked_for);
    run(test_an_older_driver_lacks_newer_calls);
    return finish();
}
