/* Memory and events between processes. Each test forks before the driver is used: the
 * parent exports, the child imports, and each tells the other through a pipe how far it
 * is.
 */
#include "sim_check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>

static int from_parent[2], from_child[2];

static void send(const int pipe_ends[2], const void *what, size_t bytes)
{
    CHECK(write(pipe_ends[1], what, bytes) == (ssize_t)bytes);
}

static void receive(const int pipe_ends[2], void *what, size_t bytes)
{
    CHECK(read(pipe_ends[0], what, bytes) == (ssize_t)bytes);
}

static void signal_to(const int pipe_ends[2])
{
    send(pipe_ends, "x", 1);
}

static void wait_for(const int pipe_ends[2])
{
    char mark;

    receive(pipe_ends, &mark, 1);
}

// Runs the child's part in a process of its own.
static pid_t begin(void (*child)(void))
{
    oomph_sim_reset();
    CHECK(pipe(from_parent) == 0 && pipe(from_child) == 0);
    pid_t process = fork();
    CHECK(process >= 0);
    if (process > 0)
        return process;
    child();
    _exit(0);
}

static void end(pid_t process)
{
    int status;

    CHECK(waitpid(process, &status, 0) == process);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < 2; i++) {
        close(from_parent[i]);
        close(from_child[i]);
    }
}

static CUmemAllocationProp for_export(void)
{
    CUmemAllocationProp prop = on_device(0);

    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}

static int export_page(CUmemGenericAllocationHandle handle)
{
    int descriptor = -1;

    OK(cuMemExportToShareableHandle(&descriptor, handle,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(descriptor >= 0);
    return descriptor;
}

static CUmemGenericAllocationHandle import_page(int descriptor)
{
    CUmemGenericAllocationHandle handle;

    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return handle;
}

// A descriptor of the parent, in the child.
static int fetch(int descriptor)
{
    int process = (int)syscall(SYS_pidfd_open, getppid(), 0);
    int mine = (int)syscall(SYS_pidfd_getfd, process, descriptor, 0);

    CHECK(process >= 0 && mine >= 0);
    close(process);
    return mine;
}

static void import_read_and_write(void)
{
    char out[8] = {0};
    int descriptor;

    start(NULL);
    receive(from_parent, &descriptor, sizeof descriptor);
    int mine = fetch(descriptor);
    CUmemGenericAllocationHandle handle = import_page(mine);
    close(mine);
    CUdeviceptr addr = reserve(PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemRelease(handle));
    CHECK(stats().used_bytes == 0); // it counts where it was made
    OK(cuMemcpyDtoH(out, addr + 100, 6));
    CHECK(strcmp(out, "parent") == 0);
    OK(cuMemcpyHtoD(addr + 100, "child!", 6));
    signal_to(from_child);
    wait_for(from_parent);
    OK(cuMemcpyDtoH(out, addr + 100, 6));
    CHECK(strcmp(out, "child!") == 0); // the parent has given it up meanwhile
    OK(cuMemUnmap(addr, PAGE));
    OK(cuMemAddressFree(addr, PAGE));
    CHECK(stats().misuse_count == 0);
    signal_to(from_child);
}

static void test_a_page_is_read_and_written_by_the_process_that_imports_it(void)
{
    char out[8] = {0};
    pid_t child = begin(import_read_and_write);

    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(for_export(), PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemcpyHtoD(addr + 100, "parent", 7));
    int descriptor = export_page(handle);
    send(from_parent, &descriptor, sizeof descriptor);
    wait_for(from_child);
    OK(cuMemcpyDtoH(out, addr + 100, 6));
    CHECK(strcmp(out, "child!") == 0);

    OK(cuMemUnmap(addr, PAGE));
    OK(cuMemRelease(handle));
    close(descriptor);
    CHECK(stats().used_bytes == PAGE); // the child has it still
    signal_to(from_parent);
    wait_for(from_child);
    CHECK(stats().used_bytes == 0);
    CHECK(stats().misuse_count == 0);
    end(child);
}

static void import_and_be_killed(void)
{
    int descriptor;

    start(NULL);
    receive(from_parent, &descriptor, sizeof descriptor);
    map_open(reserve(PAGE), PAGE, import_page(fetch(descriptor)));
    signal_to(from_child);
    pause();
}

static void test_what_a_process_imported_is_free_when_it_is_killed(void)
{
    int status;
    pid_t child = begin(import_and_be_killed);

    start(NULL);
    CUmemGenericAllocationHandle handle = create(for_export(), PAGE);
    int descriptor = export_page(handle);
    send(from_parent, &descriptor, sizeof descriptor);
    wait_for(from_child);
    OK(cuMemRelease(handle));
    close(descriptor);
    CHECK(stats().used_bytes == PAGE);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(stats().used_bytes == 0);
}

static void test_a_descriptor_keeps_the_page_alive(void)
{
    char out[8] = {0};

    start("4MiB,context=0");
    CUdeviceptr addr = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(for_export(), PAGE);
    map_open(addr, PAGE, handle);
    OK(cuMemcpyHtoD(addr, "kept", 5));
    int descriptor = export_page(handle);
    OK(cuMemUnmap(addr, PAGE));
    OK(cuMemRelease(handle));
    CHECK(stats().used_bytes == PAGE);
    handle = import_page(descriptor);
    close(descriptor);
    map_open(addr, PAGE, handle);
    OK(cuMemcpyDtoH(out, addr, 5));
    CHECK(strcmp(out, "kept") == 0);
    OK(cuMemUnmap(addr, PAGE));
    OK(cuMemRelease(handle));
    CHECK(stats().used_bytes == 0);
    CHECK(stats().misuse_count == 0);
}

static void test_what_names_no_page_is_not_imported(void)
{
    CUmemGenericAllocationHandle handle;
    int nothing = open("/dev/null", O_RDWR);

    start(NULL);
    CHECK_RESULT(
        cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)nothing,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_ERROR_INVALID_VALUE);
    close(nothing);
}

static void test_a_page_that_was_not_made_for_it_is_not_exported(void)
{
    int descriptor;

    start(NULL);
    CHECK_RESULT(cuMemExportToShareableHandle(&descriptor, create(on_device(0), PAGE),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              0),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("without being meant for export"));
}

static void open_allocation(void)
{
    CUipcMemHandle ipc;
    CUdeviceptr addr, again;
    char out[8] = {0};

    start(NULL);
    receive(from_parent, &ipc, sizeof ipc);
    OK(cuIpcOpenMemHandle(&addr, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(addr == again);
    OK(cuMemcpyDtoH(out, addr + 1000, 6));
    CHECK(strcmp(out, "parent") == 0);
    OK(cuMemcpyHtoD(addr + 1000, "child!", 6));
    CHECK_RESULT(cuMemFree(addr), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcCloseMemHandle(addr));
    OK(cuMemcpyDtoH(out, addr + 1000, 6)); // opened twice
    OK(cuIpcCloseMemHandle(addr));
    CHECK_RESULT(cuIpcCloseMemHandle(addr), CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("was not opened, or closed before"));
    signal_to(from_child);
}

static void test_an_allocation_is_opened_by_another_process_and_not_by_its_own(void)
{
    CUipcMemHandle ipc;
    CUdeviceptr other;
    char out[8] = {0};
    pid_t child = begin(open_allocation);

    start(NULL);
    CUdeviceptr addr = allocate(10000);
    OK(cuMemcpyHtoD(addr + 1000, "parent", 7));
    OK(cuIpcGetMemHandle(&ipc, addr + 500));
    CHECK_RESULT(cuIpcOpenMemHandle(&other, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                 CUDA_ERROR_INVALID_CONTEXT);
    send(from_parent, &ipc, sizeof ipc);
    wait_for(from_child);
    OK(cuMemcpyDtoH(out, addr + 1000, 6));
    CHECK(strcmp(out, "child!") == 0);
    OK(cuMemFree(addr));
    CHECK(stats().used_bytes == 0);
    CHECK(stats().misuse_count == 0);
    end(child);
}

static void test_mapped_pages_are_not_shared_as_an_allocation(void)
{
    CUipcMemHandle ipc;

    start(NULL);
    CUdeviceptr addr = reserve(PAGE);
    map_open(addr, PAGE, create(on_device(0), PAGE));
    CHECK_RESULT(cuIpcGetMemHandle(&ipc, addr), CUDA_ERROR_INVALID_VALUE);
}

// ---- events

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
    run(test_a_page_is_read_and_written_by_the_process_that_imports_it);
    run(test_what_a_process_imported_is_free_when_it_is_killed);
    run(test_a_descriptor_keeps_the_page_alive);
    run(test_what_names_no_page_is_not_imported);
    run(test_a_page_that_was_not_made_for_it_is_not_exported);
    run(test_an_allocation_is_opened_by_another_process_and_not_by_its_own);
    run(test_mapped_pages_are_not_shared_as_an_allocation);
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
