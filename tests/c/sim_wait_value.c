/* Waits for values in memory. Work behind one is not running, and may use its memory
 * only once it does.
 */
#include "sim_check.h"

// A flag that the program writes itself, and a page that the device may use.
typedef struct gate {
    uint32_t *flag;
    CUdeviceptr addr;
    CUmemGenericAllocationHandle handle;
    CUstream stream;
} gate_t;

static gate_t make_gate(const char *card)
{
    gate_t gate;

    start(card);
    gate = (gate_t){.flag = pin(64),
                    .addr = reserve(PAGE),
                    .handle = create(on_device(0), PAGE),
                    .stream = make_stream(CU_STREAM_NON_BLOCKING)};
    map_open(gate.addr, PAGE, gate.handle);
    return gate;
}

// In one call: says that all before it has finished, and waits until the gate is open.
static void close_gate(const gate_t *gate, CUstream stream)
{
    CUdeviceptr flags = (CUdeviceptr)(uintptr_t)gate->flag;
    CUstreamBatchMemOpParams list[2] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                        .address = flags + 4,
                        .value = 1}},
        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                       .address = flags,
                       .value = 1,
                       .flags = CU_STREAM_WAIT_VALUE_GEQ}},
    };

    OK(cuStreamBatchMemOp(stream, 2, list, 0));
}

static void open_gate(const gate_t *gate)
{
    __atomic_store_n(gate->flag, 1, __ATOMIC_RELEASE);
    oomph_sim_advance(0);
}

static void use(const gate_t *gate, CUstream stream, uint64_t cost_ns)
{
    CHECK(oomph_sim_launch(stream, gate->addr, 4096, 1, cost_ns) == CUDA_SUCCESS);
}

static void test_a_batch_writes_once_all_before_it_has_finished_and_then_waits(void)
{
    gate_t gate = make_gate(NULL);
    use(&gate, gate.stream, 1000);
    close_gate(&gate, gate.stream);
    CHECK(gate.flag[1] == 0);
    oomph_sim_advance(1000);
    CHECK(gate.flag[1] == 1);
    oomph_sim_advance(1000000);
    CHECK_RESULT(cuStreamQuery(gate.stream), CUDA_ERROR_NOT_READY);
    open_gate(&gate);
    OK(cuStreamQuery(gate.stream));
}

static void test_a_batch_with_one_bad_operation_does_nothing(void)
{
    gate_t gate = make_gate(NULL);
    CUstreamBatchMemOpParams list[2] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                        .address = (CUdeviceptr)(uintptr_t)gate.flag,
                        .value = 1}},
        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32}},
    };
    CHECK_RESULT(cuStreamBatchMemOp(gate.stream, 2, list, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuStreamBatchMemOp(gate.stream, 0, list, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(*gate.flag == 0);
}

static void test_pages_may_be_replaced_under_work_that_a_value_holds_back(void)
{
    gate_t gate = make_gate(NULL);
    close_gate(&gate, gate.stream);
    use(&gate, gate.stream, 1000);
    OK(cuMemUnmap(gate.addr, PAGE));
    use(&gate, gate.stream, 1000); // comes while nothing is mapped
    map_open(gate.addr, PAGE, create(on_device(0), PAGE));
    open_gate(&gate);
    OK(cuStreamSynchronize(gate.stream));
    CHECK(*(unsigned char *)(uintptr_t)gate.addr == 0xAB);
    CHECK(stats().misuse_count == 0);
}

static void test_the_default_streams_gate_holds_blocking_streams_back(void)
{
    gate_t gate = make_gate(NULL);
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    close_gate(&gate, NULL);
    CHECK(gate.flag[1] == 1);
    use(&gate, blocking, 1000);
    OK(cuMemUnmap(gate.addr, PAGE));
    map_open(gate.addr, PAGE, gate.handle);
    open_gate(&gate);
    OK(cuStreamSynchronize(blocking));
    CHECK(stats().misuse_count == 0);
}

static void test_unmapping_under_work_before_the_gate_is_a_misuse(void)
{
    gate_t gate = make_gate(NULL);
    use(&gate, gate.stream, 1000);
    close_gate(&gate, gate.stream);
    OK(cuMemUnmap(gate.addr, PAGE));
    CHECK(misuse_says("in use by a pending kernel"));
}

static void test_unmapping_under_work_behind_an_open_gate_is_a_misuse(void)
{
    gate_t gate = make_gate(NULL);
    kernel(gate.stream, 1000);
    close_gate(&gate, gate.stream);
    use(&gate, gate.stream, 1000);
    open_gate(&gate);
    OK(cuMemUnmap(gate.addr, PAGE));
    CHECK(misuse_says("in use by a pending kernel"));
}

static void test_work_that_starts_while_its_memory_is_unmapped_is_a_misuse(void)
{
    gate_t gate = make_gate(NULL);
    close_gate(&gate, gate.stream);
    use(&gate, gate.stream, 1000);
    OK(cuMemUnmap(gate.addr, PAGE));
    open_gate(&gate);
    map_open(gate.addr, PAGE, gate.handle); // before the work has ended
    CHECK_RESULT(cuStreamSynchronize(gate.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(stats().misuse_count == 1);
    CHECK(misuse_says("which is not mapped"));
}

// Copies from the page, which takes a while, beside work behind the gate.
static uint64_t copy_beside(bool opens_early)
{
    gate_t gate = make_gate("1GiB,link=1GB/s,tick=0");
    CUstream own = make_stream(CU_STREAM_NON_BLOCKING);
    void *host;
    OK(cuMemHostAlloc(&host, PAGE, 0));
    close_gate(&gate, gate.stream);
    use(&gate, gate.stream, 1000);
    OK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)host, gate.addr, PAGE, own));
    use(&gate, gate.stream, 1000);
    if (!opens_early)
        OK(cuStreamSynchronize(own));
    open_gate(&gate);
    OK(cuStreamSynchronize(gate.stream));
    return stats().misuse_count;
}

static void test_a_copy_beside_work_that_is_held_back_is_no_misuse(void)
{
    CHECK(copy_beside(false) == 0);
}

static void test_work_that_starts_before_the_copy_has_ended_is_a_misuse(void)
{
    CHECK(copy_beside(true) == 2); // both kernels do
    CHECK(misuse_says("starts beside a cuMemcpyAsync of stream"));
}

static void test_a_stream_waits_for_a_value_that_another_writes(void)
{
    start(NULL);
    CUstream gated = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream opener = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr flag = allocate(PAGE);
    OK(cuMemsetD32(flag, 0, 1));
    OK(cuStreamWaitValue32(gated, flag, 2, CU_STREAM_WAIT_VALUE_GEQ));
    kernel(gated, 1000);
    oomph_sim_advance(1000000);
    CHECK_RESULT(cuStreamQuery(gated), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(opener, flag, 1, 0));
    oomph_sim_advance(1000000);
    CHECK_RESULT(cuStreamQuery(gated), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(opener, flag, 3, 0));
    oomph_sim_advance(1000);
    OK(cuStreamQuery(gated));
}

static void test_values_work_without_real_memory(void)
{
    start("1GiB,tick=0");
    CUstream gated = make_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr flag = allocate(PAGE);
    OK(cuStreamWaitValue64(gated, flag, 7, CU_STREAM_WAIT_VALUE_EQ));
    oomph_sim_advance(1000);
    CHECK_RESULT(cuStreamQuery(gated), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue64(NULL, flag, 7, 0));
    OK(cuStreamQuery(gated));
}

static void test_the_program_may_write_the_value_itself(void)
{
    start(NULL);
    CUstream gated = make_stream(CU_STREAM_NON_BLOCKING);
    int *flag = pin(4);
    OK(cuStreamWaitValue32(gated, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK_RESULT(cuStreamQuery(gated), CUDA_ERROR_NOT_READY);
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    oomph_sim_advance(0);
    OK(cuStreamQuery(gated));
}

static void test_waiting_for_a_value_that_nobody_writes_ends_as_a_misuse(void)
{
    start(NULL);
    CUstream gated = make_stream(CU_STREAM_NON_BLOCKING);
    int *flag = pin(4);
    OK(cuStreamWaitValue32(gated, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamSynchronize(gated));
    CHECK(misuse_says("a value that nobody writes"));
}

int main(void)
{
    run(test_a_batch_writes_once_all_before_it_has_finished_and_then_waits);
    run(test_a_batch_with_one_bad_operation_does_nothing);
    run(test_pages_may_be_replaced_under_work_that_a_value_holds_back);
    run(test_the_default_streams_gate_holds_blocking_streams_back);
    run(test_unmapping_under_work_before_the_gate_is_a_misuse);
    run(test_unmapping_under_work_behind_an_open_gate_is_a_misuse);
    run(test_work_that_starts_while_its_memory_is_unmapped_is_a_misuse);
    run(test_a_copy_beside_work_that_is_held_back_is_no_misuse);
    run(test_work_that_starts_before_the_copy_has_ended_is_a_misuse);
    run(test_a_stream_waits_for_a_value_that_another_writes);
    run(test_values_work_without_real_memory);
    run(test_the_program_may_write_the_value_itself);
    run(test_waiting_for_a_value_that_nobody_writes_ends_as_a_misuse);
    return finish();
}
