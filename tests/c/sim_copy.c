/* Copies: which bytes arrive, when, and what the host reads where memory is not real.
 */
#include "sim_check.h"

#include <stdlib.h>
#include <string.h>

static void test_a_copy_moves_its_bytes_at_its_completion(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    int *pinned = pin(8);
    OK(cuMemsetD32(addr, 5, 1));
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, stream));
    CHECK(*pinned == 0);
    OK(cuStreamSynchronize(stream));
    CHECK(*pinned == 5);
}

static void test_a_pageable_source_may_be_reused_at_once(void)
{
    int source = 1, out = 0;

    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyHtoDAsync(addr, &source, 4, stream));
    source = 2;
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&out, addr, 4));
    CHECK(out == 1);
    CHECK(stats().misuse_count == 0);
}

// Pinned and unpinned while the copy waits, which has read it.
static void copy_and_pin(const char *card)
{
    const size_t bytes = 4 * PAGE;

    start(card);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(bytes);
    void *source = aligned_alloc(PAGE, bytes);
    CHECK(source != NULL);
    memset(source, 1, bytes);
    oomph_sim_hold(stream);
    OK(cuMemcpyHtoDAsync(addr, source, bytes, stream));
    OK(cuMemHostRegister(source, bytes, 0));
    OK(cuMemHostUnregister(source));
    oomph_sim_release(stream);
    OK(cuStreamSynchronize(stream));
    CHECK(stats().misuse_count == 0);
    free(source);
}

static void test_a_large_pageable_source_is_not_used_after_the_call(void)
{
    copy_and_pin("1GiB,memory=none");
    copy_and_pin("1GiB,memory=real");
}

static void test_a_copy_to_pageable_memory_has_arrived_on_return(void)
{
    int out = 0;

    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemsetD32Async(addr, 3, 1, stream));
    OK(cuMemcpyDtoHAsync(&out, addr, 4, stream));
    CHECK(out == 3);
}

static void test_reusing_a_pinned_source_too_early_is_a_misuse(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    int *pinned = pin(PAGE);
    OK(cuMemcpyHtoDAsync(addr, pinned, PAGE, stream));
    pinned[1000] = 1;
    OK(cuStreamSynchronize(stream));
    CHECK(misuse_says("was written to"));
}

static void test_a_pinned_source_may_be_written_by_earlier_work(void)
{
    int out = 0;

    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    int *pinned = pin(PAGE);
    OK(cuMemsetD32Async(addr, 3, 1, stream));
    OK(cuMemcpyDtoHAsync(pinned, addr, PAGE, stream));
    OK(cuMemcpyHtoDAsync(addr, pinned, PAGE, stream));
    OK(cuMemcpyDtoHAsync(&out, addr, 4, stream));
    CHECK(out == 3);
    CHECK(stats().misuse_count == 0);
}

static void test_freeing_a_pinned_buffer_in_use_is_a_misuse(void)
{
    start(NULL);
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr addr = allocate(PAGE);
    int *pinned = pin(PAGE);
    OK(cuMemcpyDtoHAsync(pinned, addr, PAGE, stream));
    OK(cuMemFreeHost(pinned));
    CHECK(misuse_says("in use by a pending cuMemcpyDtoHAsync"));
}

static void test_a_copy_takes_the_time_of_the_link(void)
{
    float ms;

    start("1GiB,link=10GB/s,memory=real,tick=0");
    CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent before = make_event(0), after = make_event(0);
    CUdeviceptr addr = allocate(100000000);
    int *pinned = pin(100000000);
    OK(cuEventRecord(before, stream));
    OK(cuMemcpyHtoDAsync(addr, pinned, 100000000, stream));
    OK(cuEventRecord(after, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuEventElapsedTime(&ms, before, after));
    CHECK(ms > 9.99f && ms < 10.02f);
}

static uint64_t read_back(CUdeviceptr addr)
{
    uint64_t value = 1;

    OK(cuMemcpyDtoH(&value, addr, sizeof value));
    return value;
}

static void test_what_the_host_wrote_is_shadowed_until_a_kernel_runs(void)
{
    uint64_t values[2] = {5, 6};

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    CHECK(read_back(addr) == 0);
    OK(cuMemcpyHtoDAsync(addr, values, sizeof values, NULL));
    values[0] = 7; // pageable: it was read
    CHECK(read_back(addr) == 5 && read_back(addr + 8) == 6);
    CHECK(read_back(addr + 12) == 0); // the shadow does not hold all of it
    CHECK(oomph_sim_launch(NULL, 0, 0, 0, 1000) == 0);
    OK(cuCtxSynchronize());
    CHECK(read_back(addr) == 0);
}

static void test_the_shadow_follows_copies_and_is_overwritten(void)
{
    uint64_t values[2] = {5, 6};

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyHtoD(addr, values, sizeof values));
    OK(cuMemcpyDtoD(addr + 1000, addr, sizeof values));
    OK(cuMemsetD8(addr, 1, 1));
    CHECK(read_back(addr) == 1 && read_back(addr + 1000) == 5);
    OK(cuMemcpyHtoD(addr + 1000, &values[1], 8));
    CHECK(read_back(addr + 1000) == 6);
    OK(cuMemcpyDtoD(addr + 1000, addr + 2000, 8)); // of what has no shadow
    CHECK(read_back(addr + 1000) == 0 && read_back(addr + 1008) == 6);
}

static void test_the_shadow_keeps_what_is_around_a_write(void)
{
    const uint64_t values[4] = {5, 6, 7, 8}, other = 9;

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyHtoD(addr, values, sizeof values));
    OK(cuMemcpyHtoD(addr + 8, &other, 8));
    CHECK(read_back(addr) == 5 && read_back(addr + 8) == 9);
    OK(cuMemcpyDtoD(addr + 8, addr + 2000, 8)); // nothing is known of it any more
    CHECK(read_back(addr) == 5 && read_back(addr + 8) == 0);
    CHECK(read_back(addr + 16) == 7 && read_back(addr + 24) == 8);
    OK(cuMemcpyHtoD(addr + 8, &other, 8)); // between two pieces
    uint64_t found[4];
    OK(cuMemcpyDtoH(found, addr, sizeof found));
    CHECK(found[0] == 5 && found[1] == 9 && found[2] == 7 && found[3] == 8);
}

static void test_only_so_much_is_shadowed(void)
{
    static uint64_t values[(1 << 20) / sizeof(uint64_t) + 1] = {5};

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyHtoD(addr, values, sizeof values));
    CHECK(read_back(addr) == 0);
    OK(cuMemcpyHtoD(addr, values, sizeof values - sizeof *values));
    CHECK(read_back(addr) == 5);
    OK(cuMemcpyDtoD(addr, allocate(PAGE), sizeof values)); // of what has no shadow
    for (uint64_t i = 1; i <= 2000; i++) {
        OK(cuMemcpyHtoD(addr + 16 * i, &i, sizeof i));
        CHECK(read_back(addr + 16) == 1); // what is in use stays
    }
    CHECK(read_back(addr + 32) == 0 && read_back(addr + 16 * 1900) == 1900);
    CHECK(read_back(addr + 16 * 2000) == 2000);
}

static void test_copies_to_the_host_read_the_value_that_was_set(void)
{
    uint64_t out[2] = {1, 1};
    char byte;

    start("1GiB");
    CUdeviceptr addr = allocate(PAGE);
    OK(cuMemcpyDtoH(out, addr, sizeof out));
    CHECK(out[0] == 0 && out[1] == 0);
    CHECK(oomph_sim_fake_readback(1000) == 0);
    memset(out, 1, sizeof out);
    OK(cuMemcpyDtoH(out, addr, sizeof out));
    CHECK(out[0] == 1000 && out[1] == 0);
    CHECK(oomph_sim_fake_readback(256) == 1000);
    OK(cuMemcpyDtoH(&byte, addr, 1));
    CHECK(byte == 1);
    oomph_sim_fake_readback(0);
    OK(cuMemcpyDtoH(&byte, addr, 1));
    CHECK(byte == 0);
}

static int word_at(CUdeviceptr addr)
{
    int word = -1;

    OK(cuMemcpyDtoH(&word, addr, sizeof word));
    return word;
}

static void test_zeros_that_were_never_written_are_copied_too(void)
{
    start("1GiB,memory=real");
    CUdeviceptr from = allocate(2 * PAGE), to = allocate(2 * PAGE);
    OK(cuMemsetD32(from + PAGE + 40960, 5, 1));
    OK(cuMemsetD32(to + 20480, 7, 1));
    OK(cuMemsetD32(to + PAGE + 40964, 7, 1));
    OK(cuMemsetD32(to + 2 * PAGE - 4, 7, 1));
    OK(cuMemcpyDtoD(to + 100, from + 100, 2 * PAGE - 104));
    CHECK(word_at(to + 20480) == 0);
    CHECK(word_at(to + PAGE + 40960) == 5);
    CHECK(word_at(to + PAGE + 40964) == 0);
    CHECK(word_at(to + 2 * PAGE - 4) == 7);
}

int main(void)
{
    run(test_a_copy_moves_its_bytes_at_its_completion);
    run(test_a_pageable_source_may_be_reused_at_once);
    run(test_a_large_pageable_source_is_not_used_after_the_call);
    run(test_a_copy_to_pageable_memory_has_arrived_on_return);
    run(test_reusing_a_pinned_source_too_early_is_a_misuse);
    run(test_a_pinned_source_may_be_written_by_earlier_work);
    run(test_freeing_a_pinned_buffer_in_use_is_a_misuse);
    run(test_a_copy_takes_the_time_of_the_link);
    run(test_what_the_host_wrote_is_shadowed_until_a_kernel_runs);
    run(test_the_shadow_follows_copies_and_is_overwritten);
    run(test_the_shadow_keeps_what_is_around_a_write);
    run(test_only_so_much_is_shadowed);
    run(test_copies_to_the_host_read_the_value_that_was_set);
    run(test_zeros_that_were_never_written_are_copied_too);
    return finish();
}
