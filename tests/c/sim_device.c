/* Devices and contexts, allocations of every kind, and what an address is. */
#include "sim_check.h"

static CUcontext retain(int device)
{
    CUcontext context;

    OK(cuDevicePrimaryCtxRetain(&context, device));
    return context;
}

static oomph_sim_stats_t stats_of(int device)
{
    oomph_sim_stats_t now;

    CHECK(oomph_sim_stats(device, &now) == 0);
    return now;
}

static void test_the_card_is_what_was_described(void)
{
    char name[64];
    int count, major, minor, version;
    size_t bytes;
    CUdevice device;

    start("11.5GiB,devices=3,cc=8.6,driver=12040,name=My card");
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGetName(name, sizeof name, 2));
    OK(cuDeviceTotalMem(&bytes, 0));
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    CHECK(count == 3 && strcmp(name, "My card") == 0 && major == 8 && minor == 6);
    CHECK(bytes == 23ull << 29 && version == 12040);
    CHECK_RESULT(cuDeviceGet(&device, 3), CUDA_ERROR_INVALID_DEVICE);
}

static void test_a_device_is_found_by_its_bus(void)
{
    char id[16];
    CUdevice device;

    start("1GiB,devices=3");
    OK(cuDeviceGetPCIBusId(id, sizeof id, 2));
    OK(cuDeviceGetByPCIBusId(&device, id));
    CHECK(device == 2);
    CHECK_RESULT(cuDeviceGetByPCIBusId(&device, "0000:04:00.0"),
                 CUDA_ERROR_INVALID_DEVICE);
    CHECK_RESULT(cuDeviceGetByPCIBusId(&device, "0000"), CUDA_ERROR_INVALID_DEVICE);
}

static void test_a_context_takes_memory_while_it_is_active(void)
{
    CUcontext context;
    unsigned flags;
    int active;

    start("1GiB,devices=2,context=100MiB");
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    CHECK(!active && stats_of(1).context_bytes == 0);
    context = retain(1);
    CHECK(retain(1) == context);
    CHECK(stats_of(1).context_bytes == 100u << 20);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    CHECK(active);
    OK(cuDevicePrimaryCtxRelease(1));
    CHECK(stats_of(1).context_bytes == 0);
    CHECK_RESULT(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(misuse_says("released more often"));
}

static void test_calls_need_a_context(void)
{
    CUdeviceptr addr;
    CUdevice device;
    CUstream stream;
    size_t bytes;

    start(NULL);
    OK(cuCtxSetCurrent(NULL));
    CHECK_RESULT(cuMemAlloc(&addr, PAGE), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_RESULT(cuMemGetInfo(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_RESULT(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_RESULT(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuMemRelease(create(on_device(0), PAGE))); // virtual memory needs none
}

static void test_a_context_that_is_gone_is_an_error(void)
{
    CUdeviceptr addr;

    start(NULL);
    OK(cuMemAlloc(&addr, PAGE));
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(stats().used_bytes == 0); // its allocations went with it
    CHECK_RESULT(cuMemAlloc(&addr, PAGE), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void test_contexts_are_a_stack_in_each_thread(void)
{
    CUcontext first, popped;
    CUdevice device;

    start("1GiB,devices=2");
    OK(cuCtxGetCurrent(&first));
    OK(cuCtxPushCurrent(retain(1)));
    OK(cuCtxGetDevice(&device));
    CHECK(device == 1);
    OK(cuCtxPopCurrent(&popped));
    OK(cuCtxGetDevice(&device));
    CHECK(device == 0 && popped != first);
}

static void test_each_device_has_its_own_memory_and_streams(void)
{
    CUstream blocking;
    CUdeviceptr addr;

    start("64MiB,devices=2,context=0,memory=real,tick=0");
    OK(cuMemAlloc(&addr, 60u << 20));
    OK(cuCtxSetCurrent(retain(1)));
    OK(cuMemAlloc(&addr, 60u << 20));
    CHECK(stats_of(0).used_bytes == 60u << 20 && stats_of(1).used_bytes == 60u << 20);
    CHECK_RESULT(cuMemAlloc(&addr, 60u << 20), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(oomph_sim_launch(NULL, 0, 0, 0, 1000) == CUDA_SUCCESS);
    CHECK_RESULT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK(oomph_sim_launch(blocking, 0, 0, 0, 1000) == CUDA_SUCCESS);
    OK(cuCtxSetCurrent(retain(0)));
    OK(cuStreamQuery(NULL)); // another default stream, which waits for neither
}

static void test_a_fault_breaks_only_its_own_device(void)
{
    start("1GiB,devices=2,tick=0");
    CHECK(oomph_sim_launch(NULL, reserve(PAGE), 8, 1, 0) == CUDA_SUCCESS);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxSetCurrent(retain(1)));
    OK(cuCtxSynchronize());
}

static void test_pages_are_open_to_the_devices_that_were_named(void)
{
    CUmemAccessDesc second = by_device(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    int can, value = 0;

    start("1GiB,devices=2,memory=real");
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can);
    CUdeviceptr addr = reserve(PAGE);
    map_open(addr, PAGE, create(on_device(0), PAGE));
    OK(cuMemsetD32(addr, 5, 1));
    OK(cuCtxSetCurrent(retain(1)));
    CHECK_RESULT(cuMemcpyDtoH(&value, addr, 4), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(addr, PAGE, &second, 1));
    OK(cuMemcpyDtoH(&value, addr, 4));
    CHECK(value == 5);
}

static void test_a_kernel_needs_peer_access_and_a_copy_does_not(void)
{
    CUcontext first;

    start("1GiB,devices=2,memory=real,tick=0");
    OK(cuCtxGetCurrent(&first));
    CUdeviceptr addr = allocate(PAGE);
    OK(cuCtxSetCurrent(retain(1)));
    CUdeviceptr other = allocate(PAGE);
    OK(cuMemcpyPeerAsync(other, retain(1), addr, first, PAGE, NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxEnablePeerAccess(first, 0));
    CHECK_RESULT(cuCtxEnablePeerAccess(first, 0),
                 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CHECK(oomph_sim_launch(NULL, addr, 8, 1, 0) == CUDA_SUCCESS);
    OK(cuCtxSynchronize());
    OK(cuCtxDisablePeerAccess(first));
    CHECK(oomph_sim_launch(NULL, addr, 8, 1, 0) == CUDA_SUCCESS);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void test_freeing_twice_or_the_unknown_is_a_misuse(void)
{
    CUdeviceptr addr;

    start(NULL);
    OK(cuMemAlloc(&addr, PAGE));
    CHECK_RESULT(cuMemFree(addr + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(addr));
    CHECK_RESULT(cuMemFree(addr), CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("freed before"));
    OK(cuMemFree(0));
    CHECK_RESULT(cuMemFreeHost(&addr), CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuMemHostUnregister(&addr), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(stats().misuse_count == 4);
}

static void test_free_waits_for_the_device(void)
{
    start(NULL);
    CUdeviceptr addr = allocate(PAGE);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CHECK(oomph_sim_launch(stream, addr, PAGE, 1, 1000) == CUDA_SUCCESS);
    OK(cuMemFree(addr));
    OK(cuStreamQuery(stream));
    CHECK(stats().misuse_count == 0);
}

static void test_small_allocations_share_pages(void)
{
    CUdeviceptr addr;

    start(NULL);
    OK(cuMemAlloc(&addr, 100));
    CHECK(stats().used_bytes == 512);
    OK(cuMemAlloc(&addr, PAGE + 1));
    CHECK(stats().used_bytes == 512 + 2 * PAGE);
}

static uint64_t pool_bytes(void)
{
    CUmemoryPool pool;
    cuuint64_t bytes = 0;

    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
}

static void test_stream_ordered_memory_is_freed_in_its_streams_order(void)
{
    CUdeviceptr addr;

    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemAllocAsync(&addr, 1000, stream));
    OK(cuMemsetD8Async(addr, 1, 1000, stream));
    OK(cuMemFreeAsync(addr, stream));
    CHECK(stats().used_bytes == 1024 && pool_bytes() == 1024);
    OK(cuStreamSynchronize(stream));
    CHECK(stats().used_bytes == 0 && pool_bytes() == 0);
    CHECK(stats().misuse_count == 0);
    CHECK_RESULT(cuMemFreeAsync(addr, stream), CUDA_ERROR_INVALID_VALUE);
}

static void test_stream_ordered_memory_waits_for_pending_frees_before_it_fails(void)
{
    CUdeviceptr addr;

    start("64MiB,context=0");
    OK(cuMemAllocAsync(&addr, 60u << 20, NULL));
    OK(cuMemsetD8Async(addr, 1, 60u << 20, NULL));
    OK(cuMemFreeAsync(addr, NULL));
    OK(cuMemAllocAsync(&addr, 60u << 20, NULL));
    CHECK_RESULT(cuMemAllocAsync(&addr, 60u << 20, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

static void test_freeing_under_another_streams_work_is_a_misuse(void)
{
    CUdeviceptr addr;

    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemAllocAsync(&addr, PAGE, NULL));
    OK(cuMemsetD8Async(addr, 1, PAGE, stream));
    OK(cuMemFreeAsync(addr, NULL));
    CHECK(misuse_says("in use by a pending cuMemsetD8Async"));
}

static void test_registering_twice_is_an_error(void)
{
    static char buffer[8192];

    start(NULL);
    OK(cuMemHostRegister(buffer, sizeof buffer, 0));
    CHECK(stats().pinned_bytes == sizeof buffer);
    CHECK_RESULT(cuMemHostRegister(buffer + 10, 1, 0),
                 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostUnregister(buffer));
    CHECK(stats().pinned_bytes == 0);
}

static unsigned memory_type(CUdeviceptr addr)
{
    unsigned type = 0;

    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr));
    return type;
}

static void test_host_located_pages_are_host_pointers(void)
{
    void *pinned;
    int on_stack = 0;
    unsigned type;

    start(NULL);
    CUdeviceptr addr = reserve(2 * PAGE);
    map_open(addr, PAGE, create(on_device(0), PAGE));
    map_open(addr + PAGE, PAGE, create(on_host(), PAGE));
    CUdeviceptr plain = allocate(PAGE);
    OK(cuMemHostAlloc(&pinned, 100, 0));
    CHECK(memory_type(addr) == CU_MEMORYTYPE_DEVICE);
    CHECK(memory_type(addr + PAGE) == CU_MEMORYTYPE_HOST);
    CHECK(memory_type(plain) == CU_MEMORYTYPE_DEVICE);
    CHECK(memory_type((CUdeviceptr)pinned) == CU_MEMORYTYPE_HOST);
    CHECK_RESULT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       (CUdeviceptr)&on_stack),
                 CUDA_ERROR_INVALID_VALUE);
}

static void test_an_address_knows_its_range_and_its_mapping(void)
{
    CUdeviceptr base;
    size_t bytes;
    uint64_t block, other_block;
    bool mapped;

    start(NULL);
    CUdeviceptr addr = reserve(4 * PAGE);
    CUdeviceptr inside = addr + PAGE + 100;
    map_open(addr + PAGE, PAGE, create(on_device(0), PAGE));
    OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside));
    OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside));
    CHECK(base == addr && bytes == 4 * PAGE);
    OK(cuMemGetAddressRange(&base, &bytes, inside));
    CHECK(base == addr + PAGE && bytes == PAGE);
    OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, inside));
    CHECK(mapped);
    OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, addr));
    CHECK(!mapped);
    OK(cuPointerGetAttribute(&block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, inside));
    OK(cuMemUnmap(addr + PAGE, PAGE));
    map_open(addr + PAGE, PAGE, create(on_host(), PAGE));
    OK(cuPointerGetAttribute(&other_block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                             inside));
    CHECK(block != other_block);
    CHECK_RESULT(cuMemGetAddressRange(&base, &bytes, addr), CUDA_ERROR_NOT_FOUND);
}

static void test_rows_are_copied_by_pitch(void)
{
    char rows[4][8] = {"abc", "def", "ghi", "jkl"}, out[4][4] = {{0}};

    start(NULL);
    CUdeviceptr addr = allocate(PAGE);
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = rows,
        .srcPitch = 8,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = addr,
        .dstPitch = 100,
        .WidthInBytes = 4,
        .Height = 4,
    };
    OK(cuMemcpy2DAsync(&copy, NULL));
    memset(rows, 0, sizeof rows); // pageable: it was read
    CUDA_MEMCPY2D back = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = addr,
        .srcPitch = 100,
        .dstMemoryType = CU_MEMORYTYPE_HOST,
        .dstHost = out,
        .dstPitch = 4,
        .WidthInBytes = 4,
        .Height = 4,
    };
    OK(cuMemcpy2D(&back));
    CHECK(strcmp(out[0], "abc") == 0 && strcmp(out[3], "jkl") == 0);
}

static void test_a_module_that_was_unloaded_is_an_error(void)
{
    CUmodule module;
    CUfunction function;

    start(NULL);
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "kernel"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuModuleUnload(module));
    CHECK_RESULT(cuModuleGetFunction(&function, module, "kernel"),
                 CUDA_ERROR_INVALID_HANDLE);
    CHECK(misuse_says("was unloaded"));
    CHECK_RESULT(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
    run(test_the_card_is_what_was_described);
    run(test_a_device_is_found_by_its_bus);
    run(test_a_context_takes_memory_while_it_is_active);
    run(test_calls_need_a_context);
    run(test_a_context_that_is_gone_is_an_error);
    run(test_contexts_are_a_stack_in_each_thread);
    run(test_each_device_has_its_own_memory_and_streams);
    run(test_a_fault_breaks_only_its_own_device);
    run(test_pages_are_open_to_the_devices_that_were_named);
    run(test_a_kernel_needs_peer_access_and_a_copy_does_not);
    run(test_freeing_twice_or_the_unknown_is_a_misuse);
    run(test_free_waits_for_the_device);
    run(test_small_allocations_share_pages);
    run(test_stream_ordered_memory_is_freed_in_its_streams_order);
    run(test_stream_ordered_memory_waits_for_pending_frees_before_it_fails);
    run(test_freeing_under_another_streams_work_is_a_misuse);
    run(test_registering_twice_is_an_error);
    run(test_host_located_pages_are_host_pointers);
    run(test_an_address_knows_its_range_and_its_mapping);
    run(test_rows_are_copied_by_pitch);
    run(test_a_module_that_was_unloaded_is_an_error);
    return finish();
}
