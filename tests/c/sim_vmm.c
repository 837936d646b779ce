/* The contracts of virtual memory management: what works, what is refused, what is a
 * misuse, and that bytes stay what they were.
 */
#include "sim_check.h"

#include <signal.h>

static void test_a_page_is_usable_once_reserved_created_mapped_and_opened(void)
{
    char out[16] = {0};

    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    map_open(addr, PAGE, create(on_device(0), PAGE));
    OK(cuMemcpyHtoD(addr + 100, "hello", 6));
    OK(cuMemcpyDtoH(out, addr + 100, 6));
    CHECK(strcmp(out, "hello") == 0);
    CHECK(stats().misuse_count == 0);
}

static void test_bytes_survive_the_way_to_the_host_and_back_at_one_address(void)
{
    CUmemAccessDesc both[2] = {by_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                               by_host(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
    static char bytes[4096], out[4096];

    start(NULL);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 131);
    CUdeviceptr addr = reserve(PAGE), side = reserve(PAGE);
    CUmemGenericAllocationHandle device = create(on_device(0), PAGE);
    CUmemGenericAllocationHandle host = create(on_host(), PAGE);
    map_open(addr, PAGE, device);
    OK(cuMemcpyHtoD(addr, bytes, sizeof bytes));

    map_open(side, PAGE, host);
    OK(cuMemcpyDtoD(side, addr, PAGE));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(addr, PAGE));
    OK(cuMemRelease(device));
    CHECK(stats().used_bytes == 0);
    OK(cuMemMap(addr, PAGE, 0, host, 0));
    OK(cuMemSetAccess(addr, PAGE, both, 2));
    CHECK(memcmp((void *)addr, bytes, sizeof bytes) == 0); // the CPU reads it in place
    ((char *)addr)[7] = 77;
    bytes[7] = 77;

    CUmemGenericAllocationHandle again = create(on_device(0), PAGE);
    OK(cuMemUnmap(side, PAGE));
    map_open(side, PAGE, again);
    OK(cuMemcpyDtoD(side, addr, PAGE));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(addr, PAGE));
    map_open(addr, PAGE, again);
    OK(cuMemcpyDtoH(out, addr, sizeof out));
    CHECK(memcmp(out, bytes, sizeof bytes) == 0);
    CHECK(stats().misuse_count == 0);
}

static void test_a_handle_keeps_its_bytes_while_it_is_mapped_nowhere(void)
{
    int value = 0;

    start(NULL);
    CUdeviceptr addr = reserve(2 * PAGE);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemsetD32(addr, 1234, 1));
    OK(cuMemUnmap(addr, PAGE));
    map_open(addr + PAGE, PAGE, handle);
    OK(cuMemcpyDtoH(&value, addr + PAGE, sizeof value));
    CHECK(value == 1234);
}

static void test_two_mappings_of_a_handle_show_the_same_bytes(void)
{
    int value = 0;

    start(NULL);
    CUdeviceptr addr = reserve(2 * PAGE);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    map_open(addr, PAGE, handle);
    map_open(addr + PAGE, PAGE, handle);
    OK(cuMemsetD32(addr, 99, 1));
    OK(cuMemcpyDtoH(&value, addr + PAGE, sizeof value));
    CHECK(value == 99);
}

static void test_a_released_handle_lives_until_its_last_mapping_goes(void)
{
    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemRelease(handle));
    CHECK(stats().used_bytes == PAGE);
    OK(cuMemsetD32(addr, 1, 1));
    OK(cuMemUnmap(addr, PAGE));
    CHECK(stats().used_bytes == 0);
    CHECK(stats().misuse_count == 0);
}

static void test_one_call_unmaps_and_opens_several_whole_mappings(void)
{
    CUmemAccessDesc access = by_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    start(NULL);
    CUdeviceptr addr = reserve(4 * PAGE);
    for (size_t i = 0; i < 4; i++)
        OK(cuMemMap(addr + i * PAGE, PAGE, 0, create(on_device(0), PAGE), 0));
    OK(cuMemSetAccess(addr, 4 * PAGE, &access, 1));
    OK(cuMemsetD8(addr, 1, 4 * PAGE));
    OK(cuMemUnmap(addr, 4 * PAGE));
    CHECK(stats().mapping_count == 0);
    CHECK(stats().misuse_count == 0);
}

static void test_a_page_needs_access_again_after_every_mapping(void)
{
    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemUnmap(addr, PAGE));
    OK(cuMemMap(addr, PAGE, 0, handle, 0));
    CHECK_RESULT(cuMemsetD8(addr, 1, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("cuMemsetD8"));
}

static void test_read_access_does_not_allow_writes(void)
{
    CUmemAccessDesc access = by_device(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    unsigned long long flags;
    char byte;

    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    OK(cuMemMap(addr, PAGE, 0, create(on_device(0), PAGE), 0));
    OK(cuMemSetAccess(addr, PAGE, &access, 1));
    OK(cuMemcpyDtoH(&byte, addr, 1));
    CHECK_RESULT(cuMemsetD8(addr, 1, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAccess(&flags, &access.location, addr));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static void refused(CUresult result, const char *why)
{
    CHECK(result == CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says(why));
}

static void test_wrong_arguments_are_refused_and_counted(void)
{
    CUdeviceptr addr, other;
    CUmemGenericAllocationHandle made;
    CUmemAllocationProp prop = on_device(0);

    start(NULL);
    addr = reserve(8 * PAGE);
    CUmemGenericAllocationHandle two = create(on_device(0), 2 * PAGE);
    CUmemGenericAllocationHandle one = create(on_device(0), PAGE);
    refused(cuMemAddressReserve(&other, 100, 0, 0, 0), "cuMemAddressReserve");
    refused(cuMemAddressReserve(&other, PAGE, 3, 0, 0), "cuMemAddressReserve");
    refused(cuMemCreate(&made, 4096, &prop, 0), "cuMemCreate");
    refused(cuMemCreate(&made, PAGE, &prop, 1), "cuMemCreate");
    refused(cuMemMap(addr, PAGE, PAGE, two, 0), "offset");
    refused(cuMemMap(addr + 4096, PAGE, 0, one, 0), "cuMemMap");
    refused(cuMemMap(addr, 2 * PAGE, 0, one, 0), "the handle has");
    refused(cuMemMap(addr + 7 * PAGE, 2 * PAGE, 0, two, 0), "not in one reservation");
    OK(cuMemMap(addr, 2 * PAGE, 0, two, 0));
    refused(cuMemMap(addr + PAGE, PAGE, 0, one, 0), "is mapped already");
    refused(cuMemUnmap(addr, PAGE), "only a part");
    refused(cuMemUnmap(addr + PAGE, PAGE), "only a part");
    refused(cuMemUnmap(addr, 4 * PAGE), "is not mapped");
    refused(cuMemAddressFree(addr, 8 * PAGE), "mappings are left");
    OK(cuMemUnmap(addr, 2 * PAGE));
    refused(cuMemAddressFree(addr, 4 * PAGE), "are reserved");
    refused(cuMemAddressFree(addr + PAGE, 7 * PAGE), "not the start");
    OK(cuMemAddressFree(addr, 8 * PAGE));
    refused(cuMemAddressFree(addr, 8 * PAGE), "cuMemAddressFree");
}

static void test_a_second_release_is_a_misuse(void)
{
    start(NULL);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    OK(cuMemRelease(handle));
    refused(cuMemRelease(handle), "released before");
    CUmemGenericAllocationHandle next = create(on_device(0), PAGE); // the same place
    refused(cuMemRelease(handle), "released before");
    OK(cuMemRelease(next));
    refused(cuMemRelease(12345), "does not exist");
}

static void test_access_is_refused_on_holes_parts_and_unknown_places(void)
{
    CUmemAccessDesc access = by_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemAccessDesc nowhere = by_device(7, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemAccessDesc host = by_host(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    start(NULL);
    CUdeviceptr addr = reserve(4 * PAGE);
    OK(cuMemMap(addr, 2 * PAGE, 0, create(on_device(0), 2 * PAGE), 0));
    refused(cuMemSetAccess(addr, 4 * PAGE, &access, 1), "is not mapped");
    refused(cuMemSetAccess(addr, PAGE, &access, 1), "only a part");
    refused(cuMemSetAccess(addr, 2 * PAGE, &host, 1), "host access to device memory");
    CHECK_RESULT(cuMemSetAccess(addr, 2 * PAGE, &nowhere, 1),
                 CUDA_ERROR_INVALID_DEVICE);
    OK(cuMemSetAccess(addr, 2 * PAGE, &access, 1));
}

static void test_host_pages_must_name_a_node_that_exists(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_host();

    start(NULL);
    prop.location.id = -1;
    refused(cuMemCreate(&handle, PAGE, &prop, 0), "cuMemCreate");
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    refused(cuMemCreate(&handle, PAGE, &prop, 0), "cuMemCreate");
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    refused(cuMemCreate(&handle, PAGE, &prop, 0), "cuMemCreate");
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    CHECK(stats().host_bytes == PAGE && stats().used_bytes == 0);
}

static void try_host_pages(const char *card, CUresult numa, CUresult host)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_host();

    start(card);
    CHECK_RESULT(cuMemCreate(&handle, PAGE, &prop, 0), numa);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK_RESULT(cuMemCreate(&handle, PAGE, &prop, 0), host);
    CHECK(stats().misuse_count == 0);
}

static void test_the_card_says_which_host_pages_there_are(void)
{
    try_host_pages("1GiB,host-pages=numa", CUDA_SUCCESS, CUDA_SUCCESS);
    try_host_pages("1GiB,host-pages=host", CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS);
    try_host_pages("1GiB,host-pages=none", CUDA_ERROR_NOT_SUPPORTED,
                   CUDA_ERROR_NOT_SUPPORTED);
}

static void test_memory_ends_at_the_capacity_and_that_is_no_misuse(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    size_t free_bytes, total_bytes;

    start("64MiB,context=16MiB");
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    CHECK(free_bytes == 48u << 20 && total_bytes == 64u << 20);
    CHECK_RESULT(cuMemCreate(&handle, 50u << 20, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 48u << 20, &prop, 0));
    CHECK_RESULT(cuMemCreate(&handle, PAGE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    CHECK(free_bytes == 0);
    CHECK(stats().misuse_count == 0);
}

static void test_host_memory_ends_at_its_limit(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_host();
    void *pinned;

    start("1GiB,host=8MiB");
    OK(cuMemCreate(&handle, 2 * PAGE, &prop, 0));
    OK(cuMemHostAlloc(&pinned, PAGE, 0));
    CHECK_RESULT(cuMemCreate(&handle, 2 * PAGE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RESULT(cuMemHostAlloc(&pinned, 2 * PAGE, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(stats().host_bytes == 2 * PAGE && stats().pinned_bytes == PAGE);
}

// Whether touching `place` kills a child process.
static bool faults(volatile char *place, bool write)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (write)
            *place = 1;
        else
            (void)*place;
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status);
}

static void test_stray_accesses_of_the_program_fault(void)
{
    CUmemAccessDesc read = by_device(0, CU_MEM_ACCESS_FLAGS_PROT_READ);

    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    volatile char *place = (volatile char *)addr;
    CHECK(faults(place, false)); // reserved
    OK(cuMemMap(addr, PAGE, 0, create(on_device(0), PAGE), 0));
    CHECK(faults(place, false)); // mapped, not open
    OK(cuMemSetAccess(addr, PAGE, &read, 1));
    CHECK(!faults(place, false));
    CHECK(faults(place, true));
    OK(cuMemUnmap(addr, PAGE));
    CHECK(faults(place, false));
}

static void test_unmapping_under_pending_work_is_a_misuse_and_breaks_the_context(void)
{
    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    map_open(addr, PAGE, handle);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuMemsetD8Async(addr, 1, PAGE, stream));
    OK(cuMemUnmap(addr, PAGE));
    CHECK(misuse_says("pending cuMemsetD8Async"));
    CHECK_RESULT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS); // for ever
    CHECK_RESULT(cuMemsetD8Async(addr, 1, 1, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void test_a_kernel_on_an_unmapped_page_breaks_the_context(void)
{
    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    CHECK(oomph_sim_launch(NULL, addr, 64, 0, 1000) == CUDA_SUCCESS);
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(misuse_says("is not mapped"));
}

static void test_retaining_by_address_gives_the_same_handle(void)
{
    CUmemGenericAllocationHandle again;
    CUmemAllocationProp prop;

    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(on_host(), PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemRetainAllocationHandle(&again, (void *)(addr + 100)));
    CHECK(again == handle);
    OK(cuMemRelease(handle));
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, again));
    CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
    OK(cuMemRelease(again));
    CHECK_RESULT(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
}

static void test_large_reservations_cost_nothing(void)
{
    start("12GiB");
    for (int i = 0; i < 20; i++)
        reserve((size_t)100 << 30);
    CHECK(stats().reservation_count == 20);
}

static void test_more_than_the_address_space_is_out_of_memory(void)
{
    CUdeviceptr addr;

    start("12GiB");
    CHECK_RESULT(cuMemAddressReserve(&addr, ~(size_t)4095, 0, 0, 0),
                 CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RESULT(cuMemAddressReserve(&addr, PAGE, (size_t)1 << 60, 0, 0),
                 CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RESULT(cuMemAlloc(&addr, ~(size_t)0), CUDA_ERROR_OUT_OF_MEMORY);
}

static void test_without_real_memory_only_small_writes_are_remembered(void)
{
    static char large[(1 << 20) + 1] = {1, 2, 3, 4};
    char out[4] = {1, 2, 3, 4};

    start("12GiB");
    CUdeviceptr addr = reserve(PAGE);
    map_open(addr, PAGE, create(on_device(0), PAGE));
    OK(cuMemcpyHtoD(addr, "abc", 4));
    OK(cuMemcpyDtoH(out, addr, 4));
    CHECK(memcmp(out, "abc", 4) == 0);
    OK(cuMemcpyHtoD(addr, large, sizeof large));
    OK(cuMemcpyDtoH(out, addr, 4));
    CHECK(memcmp(out, "\0\0\0\0", 4) == 0);
    CHECK(stats().h2d_bytes == 4 + sizeof large && stats().d2h_bytes == 8);
    CHECK_RESULT(cuMemcpyDtoH(out, addr + PAGE - 2, 4), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
    run(test_a_page_is_usable_once_reserved_created_mapped_and_opened);
    run(test_bytes_survive_the_way_to_the_host_and_back_at_one_address);
    run(test_a_handle_keeps_its_bytes_while_it_is_mapped_nowhere);
    run(test_two_mappings_of_a_handle_show_the_same_bytes);
    run(test_a_released_handle_lives_until_its_last_mapping_goes);
    run(test_one_call_unmaps_and_opens_several_whole_mappings);
    run(test_a_page_needs_access_again_after_every_mapping);
    run(test_read_access_does_not_allow_writes);
    run(test_wrong_arguments_are_refused_and_counted);
    run(test_a_second_release_is_a_misuse);
    run(test_access_is_refused_on_holes_parts_and_unknown_places);
    run(test_host_pages_must_name_a_node_that_exists);
    run(test_the_card_says_which_host_pages_there_are);
    run(test_memory_ends_at_the_capacity_and_that_is_no_misuse);
    run(test_host_memory_ends_at_its_limit);
    run(test_stray_accesses_of_the_program_fault);
    run(test_unmapping_under_pending_work_is_a_misuse_and_breaks_the_context);
    run(test_a_kernel_on_an_unmapped_page_breaks_the_context);
    run(test_retaining_by_address_gives_the_same_handle);
    run(test_large_reservations_cost_nothing);
    run(test_more_than_the_address_space_is_out_of_memory);
    run(test_without_real_memory_only_small_writes_are_remembered);
    return finish();
}
