/* Managed memory: where it is, what gives way, what moving it takes. */
#include "sim_check.h"

enum { MB = 1000000 };
static const CUmemLocation HOST = {.type = CU_MEM_LOCATION_TYPE_HOST};
static const CUmemLocation DEVICE = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
static const char CARD[] = "1GiB,link=10GB/s,memory=none,tick=0,context=0";

static CUdeviceptr manage(size_t bytes)
{
    CUdeviceptr addr;

    OK(cuMemAllocManaged(&addr, bytes, CU_MEM_ATTACH_GLOBAL));
    return addr;
}

// The virtual time that it takes.
static double prefetch_ms(CUdeviceptr addr, size_t bytes, CUmemLocation to)
{
    uint64_t before = oomph_sim_now_ns();

    OK(cuMemPrefetchAsync(addr, bytes, to, 0, NULL));
    OK(cuCtxSynchronize());
    return (double)(oomph_sim_now_ns() - before) / 1e6;
}

static size_t free_bytes(void)
{
    size_t free, total;

    OK(cuMemGetInfo(&free, &total));
    return free;
}

static void test_it_takes_the_devices_memory_when_it_is_prefetched(void)
{
    start(CARD);
    const size_t all = free_bytes();
    CUdeviceptr addr = manage(100 * MB);

    CHECK(free_bytes() == all);
    const double ms = prefetch_ms(addr, 100 * MB, DEVICE);
    CHECK(ms > 9.99 && ms < 10.1 && free_bytes() == all - 100 * MB);
    CHECK(prefetch_ms(addr, 100 * MB, DEVICE) < 0.01); // it is there
    CHECK(prefetch_ms(addr, 100 * MB, HOST) > 9.99 && free_bytes() == all);
    CHECK(prefetch_ms(addr, 100 * MB, DEVICE) > 9.99);
    OK(cuMemFree(addr));
    CHECK(free_bytes() == all);
}

static void test_what_came_first_gives_way(void)
{
    start(CARD);
    CUdeviceptr a = manage(400 * MB), b = manage(400 * MB);

    prefetch_ms(a, 400 * MB, DEVICE);
    prefetch_ms(b, 400 * MB, DEVICE);
    prefetch_ms(a, 400 * MB, DEVICE); // which makes b the one that came first
    CUdeviceptr addr = allocate(500 * MB);
    CHECK(prefetch_ms(a, 400 * MB, DEVICE) < 0.01);
    CHECK(prefetch_ms(b, 400 * MB, DEVICE) > 39.9); // in place of a
    CHECK(prefetch_ms(a, 400 * MB, DEVICE) > 39.9);
    CHECK_RESULT(cuMemAlloc(&addr, 600 * MB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void test_what_the_device_has_no_room_for_stays_on_the_host(void)
{
    start(CARD);
    CUdeviceptr addr = manage((size_t)2000 * MB);

    CHECK(prefetch_ms(addr, (size_t)2000 * MB, DEVICE) < 0.01);
    CHECK(free_bytes() == 1u << 30);
}

static void test_host_and_device_use_it_at_one_address(void)
{
    start("1GiB,memory=values,tick=0");
    CUdeviceptr addr = manage(4096);
    unsigned char *place = (unsigned char *)(uintptr_t)addr;
    unsigned is_managed = 0;

    OK(cuMemsetD8(addr, 7, 4096));
    CHECK(place[0] == 7 && place[4095] == 7);
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, addr));
    CHECK(is_managed);
    OK(cuMemAdvise(addr, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, DEVICE));
    OK(cuMemFree(addr));
}

static void test_bad_arguments_are_refused(void)
{
    start(CARD);
    CUdeviceptr addr = manage(4096), other;
    const CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 7};

    CHECK_RESULT(cuMemAllocManaged(&other, 0, CU_MEM_ATTACH_GLOBAL),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuMemAllocManaged(&other, 1, 9), CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuMemPrefetchAsync(addr, 4097, DEVICE, 0, NULL),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuMemPrefetchAsync(addr, 4096, nowhere, 0, NULL),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuMemPrefetchAsync((CUdeviceptr)pin(64), 64, DEVICE, 0, NULL),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuMemFreeHost((void *)(uintptr_t)addr), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(addr));
    CHECK_RESULT(cuMemFree(addr), CUDA_ERROR_INVALID_VALUE);
}

static void test_it_leaves_with_the_context_of_a_device(void)
{
    CUcontext context;

    start(CARD);
    CUdeviceptr addr = manage(100 * MB);
    prefetch_ms(addr, 100 * MB, DEVICE);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CHECK(free_bytes() == 1u << 30);
    CHECK(prefetch_ms(addr, 100 * MB, DEVICE) > 9.99);
    OK(cuMemFree(addr));
}

int main(void)
{
    run(test_it_takes_the_devices_memory_when_it_is_prefetched);
    run(test_what_came_first_gives_way);
    run(test_what_the_device_has_no_room_for_stays_on_the_host);
    run(test_host_and_device_use_it_at_one_address);
    run(test_bad_arguments_are_refused);
    run(test_it_leaves_with_the_context_of_a_device);
    return finish();
}
