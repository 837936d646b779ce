/* Events between processes. */
#include "sim_ipc.h"

// What both processes of a test know.
static CUevent event;
static CUdeviceptr page;

static void share(void)
{
    CUipcEventHandle of_event;
    CUipcMemHandle of_page;

    event = make_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    page = allocate(PAGE);
    OK(cuIpcGetEventHandle(&of_event, event));
    OK(cuIpcGetMemHandle(&of_page, page));
    send(from_parent, &of_event, sizeof of_event);
    send(from_parent, &of_page, sizeof of_page);
}

static void open_shared(void)
{
    CUipcEventHandle of_event;
    CUipcMemHandle of_page;

    receive(from_parent, &of_event, sizeof of_event);
    receive(from_parent, &of_page, sizeof of_page);
    OK(cuIpcOpenEventHandle(&event, of_event));
    OK(cuIpcOpenMemHandle(&page, of_page, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

// A kernel that takes 5 us and writes, and the event behind it.
static void write_and_record(void)
{
    CHECK(oomph_sim_launch(NULL, page, PAGE, 1, 5000) == 0);
    OK(cuEventRecord(event, NULL));
}

static unsigned char last_byte(void)
{
    unsigned char byte = 0;

    OK(cuMemcpyDtoH(&byte, page + PAGE - 1, 1));
    return byte;
}

static void read_behind_the_event(void)
{
    start(NULL);
    oomph_sim_advance(777); // its clock has nothing to do with the other's
    open_shared();
    wait_for(from_parent);
    OK(cuStreamWaitEvent(NULL, event, 0));
    CHECK(oomph_sim_now_ns() == 777); // the stream waits, not the host
    CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(NULL));
    CHECK(oomph_sim_now_ns() == 777 + 5000);
    CHECK(last_byte() == 0xAB);
    CHECK(stats().misuse_count == 0);
    signal_to(from_child);
}

static void test_a_stream_goes_on_when_the_other_processs_work_is_done(void)
{
    pid_t child = begin(read_behind_the_event);

    start(NULL);
    oomph_sim_advance(1000000);
    share();
    write_and_record();
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(oomph_sim_now_ns() == 1000000); // it waits for nothing
    signal_to(from_parent);
    wait_for(from_child);
    OK(cuEventQuery(event));
    CHECK(stats().misuse_count == 0);
    end(child);
}

static void ask_for_the_event(void)
{
    start(NULL);
    open_shared();
    OK(cuEventQuery(event)); // never recorded
    signal_to(from_child);
    wait_for(from_parent);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    oomph_sim_advance(4999);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    signal_to(from_child);
    wait_for(from_parent);
    oomph_sim_advance(1);
    OK(cuEventQuery(event));
    CHECK(last_byte() == 0xAB);
    signal_to(from_child);
}

static void test_an_event_is_done_for_who_asks_when_the_clocks_come_to_it(void)
{
    pid_t child = begin(ask_for_the_event);

    start(NULL);
    share();
    wait_for(from_child);
    write_and_record();
    signal_to(from_parent);
    wait_for(from_child);
    CHECK(oomph_sim_now_ns() < 5000);
    signal_to(from_parent);
    wait_for(from_child);
    end(child);
}

static void synchronize_and_record(void)
{
    start(NULL);
    open_shared();
    wait_for(from_parent);
    OK(cuEventSynchronize(event));
    CHECK(oomph_sim_now_ns() == 5000);
    CHECK(last_byte() == 0xAB);
    OK(cuMemsetD8Async(page, 7, PAGE, NULL));
    CHECK(oomph_sim_launch(NULL, 0, 0, 0, 3000) == 0);
    OK(cuEventRecord(event, NULL));
    signal_to(from_child);
    wait_for(from_parent);
    OK(cuEventDestroy(event));
}

static void test_who_opened_an_event_may_record_it_for_who_made_it(void)
{
    pid_t child = begin(synchronize_and_record);

    start(NULL);
    share();
    write_and_record();
    signal_to(from_parent);
    wait_for(from_child);
    CHECK(oomph_sim_now_ns() == 5000);
    OK(cuEventSynchronize(event));
    CHECK(oomph_sim_now_ns() >= 8000);
    CHECK(last_byte() == 7);
    signal_to(from_parent);
    end(child);
}

static void let_the_other_go_on(void)
{
    start(NULL);
    open_shared();
    wait_for(from_parent);
    OK(cuStreamWaitEvent(NULL, event, 0));
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
    signal_to(from_child); // only now the other's work can be done
    OK(cuStreamSynchronize(NULL));
    CHECK(last_byte() == 0xAB);
    CHECK(stats().misuse_count == 0);
    signal_to(from_child);
}

static void wait_for_the_child(void *nothing)
{
    (void)nothing;
    wait_for(from_child);
}

static void test_a_stream_may_wait_for_what_depends_on_its_own_process(void)
{
    pid_t child = begin(let_the_other_go_on);

    start(NULL);
    share();
    OK(cuLaunchHostFunc(NULL, wait_for_the_child, NULL));
    write_and_record();
    signal_to(from_parent);
    OK(cuEventSynchronize(event));
    wait_for(from_child);
    end(child);
}

static void wait_and_record(void)
{
    start(NULL);
    open_shared();
    wait_for(from_parent);
    OK(cuStreamWaitEvent(NULL, event, 0));
    OK(cuMemsetD8Async(page, 7, PAGE, NULL));
    OK(cuEventRecord(event, NULL));
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    signal_to(from_child);
    wait_for(from_parent); // and so calls no driver, while the parent waits for it
    CHECK(stats().misuse_count == 0 && stats().pending_count == 0);
}

static void test_who_waits_for_a_process_that_waits_for_it_ends_the_hold(void)
{
    pid_t child = begin(wait_and_record);

    start(NULL);
    share();
    oomph_sim_hold(NULL);
    write_and_record();
    signal_to(from_parent);
    wait_for(from_child);
    CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
    CHECK(stats().held_waits == 0);
    OK(cuEventSynchronize(event));
    CHECK(stats().held_waits == 1);
    CHECK(last_byte() == 7);
    signal_to(from_parent);
    end(child);
}

static void record_and_die(void)
{
    start(NULL);
    open_shared();
    write_and_record();
}

static void test_nobody_waits_for_a_process_that_is_no_more(void)
{
    pid_t child = begin(record_and_die);

    start(NULL);
    share();
    end(child);
    OK(cuStreamWaitEvent(NULL, event, 0));
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(NULL));
}

static void test_an_event_is_not_opened_by_its_own_process(void)
{
    CUipcEventHandle ipc;
    CUevent other;

    start(NULL);
    OK(cuIpcGetEventHandle(
        &ipc, make_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)));
    CHECK_RESULT(cuIpcOpenEventHandle(&other, ipc), CUDA_ERROR_INVALID_CONTEXT);
    memset(&ipc, 0, sizeof ipc);
    CHECK_RESULT(cuIpcOpenEventHandle(&other, ipc), CUDA_ERROR_INVALID_VALUE);
}

static void test_an_event_that_was_not_made_for_it_is_not_shared(void)
{
    CUipcEventHandle ipc;

    start(NULL);
    CHECK_RESULT(cuIpcGetEventHandle(&ipc, make_event(CU_EVENT_DISABLE_TIMING)),
                 CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
    run(test_a_stream_goes_on_when_the_other_processs_work_is_done);
    run(test_an_event_is_done_for_who_asks_when_the_clocks_come_to_it);
    run(test_who_opened_an_event_may_record_it_for_who_made_it);
    run(test_a_stream_may_wait_for_what_depends_on_its_own_process);
    run(test_who_waits_for_a_process_that_waits_for_it_ends_the_hold);
    run(test_nobody_waits_for_a_process_that_is_no_more);
    run(test_an_event_is_not_opened_by_its_own_process);
    run(test_an_event_that_was_not_made_for_it_is_not_shared);
    return finish();
}
