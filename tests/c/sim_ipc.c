/* Memory between processes. */
#include "sim_ipc.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>

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

int main(void)
{
    run(test_a_page_is_read_and_written_by_the_process_that_imports_it);
    run(test_what_a_process_imported_is_free_when_it_is_killed);
    run(test_a_descriptor_keeps_the_page_alive);
    run(test_what_names_no_page_is_not_imported);
    run(test_a_page_that_was_not_made_for_it_is_not_exported);
    run(test_an_allocation_is_opened_by_another_process_and_not_by_its_own);
    run(test_mapped_pages_are_not_shared_as_an_allocation);
    return finish();
}
