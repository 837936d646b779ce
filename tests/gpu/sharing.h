/* sharing.h - the checks of conformance.c about memory and events of other processes.
 */
#pragma once
#include <sys/socket.h>

#include "children.h"

static const CUmemAllocationHandleType POSIX = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// ---- two processes: bodies run in children, before the driver is used

static int to_importer[2]; // a pair of sockets

static bool give_bytes(const void *bytes, size_t count)
{
    return write(to_importer[0], bytes, count) == (ssize_t)count;
}

static bool get_bytes(void *bytes, size_t count)
{
    return read(to_importer[1], bytes, count) == (ssize_t)count;
}

typedef union envelope {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
} envelope_t;

static bool give_descriptor(int descriptor)
{
    envelope_t envelope = {.room = {0}};
    char mark = 'x';
    struct iovec bytes = {&mark, 1};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = envelope.room,
                             .msg_controllen = sizeof envelope.room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    return sendmsg(to_importer[0], &message, 0) == 1;
}

static int get_descriptor(void)
{
    envelope_t envelope;
    char mark;
    struct iovec bytes = {&mark, 1};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = envelope.room,
                             .msg_controllen = sizeof envelope.room};
    int descriptor = -1;

    if (recvmsg(to_importer[1], &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

// Runs an importer in a process of its own beside an exporter: the result of the first
// that fails. Both find the driver unused.
static CUresult run_both(CUresult (*exporter)(void), CUresult (*importer)(void))
{
    CUresult theirs = CUDA_ERROR_UNKNOWN;
    int status;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, to_importer) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(to_importer[0]);
        theirs = start() != NULL ? importer() : CUDA_ERROR_NO_DEVICE;
        _exit(write(to_importer[1], &theirs, sizeof theirs) == sizeof theirs ? 0 : 1);
    }
    close(to_importer[1]);
    CUresult ours = start() != NULL ? exporter() : CUDA_ERROR_NO_DEVICE;
    if (ours != CUDA_SUCCESS)
        close(to_importer[0]); // nothing more will come
    else if (read(to_importer[0], &theirs, sizeof theirs) != sizeof theirs)
        theirs = CUDA_ERROR_UNKNOWN;
    waitpid(child, &status, 0);
    return ours != CUDA_SUCCESS ? ours : theirs;
}

// Whether the memory has 7 where the exporter wrote it; then has 8.
static CUresult read_and_write(CUdeviceptr addr)
{
    unsigned value = 0;

    CUresult result = cu.copy_out(&value, addr, sizeof value);
    if (result == CUDA_SUCCESS && value != 7)
        return CUDA_ERROR_INVALID_IMAGE;
    value = 8;
    return result == CUDA_SUCCESS ? cu.copy_in(addr, &value, sizeof value) : result;
}

static CUresult export_allocation(void)
{
    CUipcMemHandle ipc;
    CUdeviceptr addr;

    CUresult result = cu.alloc(&addr, 4 << 20);
    if (result == CUDA_SUCCESS)
        result = cu.fill(addr, 7, 1024);
    if (result == CUDA_SUCCESS)
        result = cu.context_synchronize();
    if (result == CUDA_SUCCESS)
        result = cu.ipc_get_memory(&ipc, addr);
    if (result == CUDA_SUCCESS && !give_bytes(&ipc, sizeof ipc))
        result = CUDA_ERROR_OPERATING_SYSTEM;
    return result;
}

static CUresult open_allocation(void)
{
    CUdeviceptr addr, again;
    CUipcMemHandle ipc;

    if (!get_bytes(&ipc, sizeof ipc))
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result =
        cu.ipc_open_memory(&addr, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS)
        result = cu.ipc_open_memory(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS && addr != again)
        return CUDA_ERROR_ALREADY_MAPPED;
    if (result == CUDA_SUCCESS)
        result = cu.ipc_close_memory(again);
    if (result == CUDA_SUCCESS)
        result = read_and_write(addr);
    return result == CUDA_SUCCESS ? cu.ipc_close_memory(addr) : result;
}

static CUresult create_for_export(CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = located(CU_MEM_LOCATION_TYPE_DEVICE, 0);

    prop.requestedHandleTypes = POSIX;
    return cu.create(handle, page, &prop, 0);
}

// A handle at an address of its own, open to the device.
static CUresult show(CUmemGenericAllocationHandle handle, CUdeviceptr *addr)
{
    CUresult result = cu.reserve(addr, page, 0, 0, 0);

    if (result == CUDA_SUCCESS)
        result = cu.map(*addr, page, 0, handle, 0);
    return result == CUDA_SUCCESS ? open_to_device(*addr, page) : result;
}

static void hide(CUdeviceptr addr)
{
    cu.unmap(addr, page);
    cu.unreserve(addr, page);
}

static CUresult export_page(void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;
    int descriptor = -1;

    CUresult result = create_for_export(&handle);
    if (result == CUDA_SUCCESS)
        result = show(handle, &addr);
    if (result == CUDA_SUCCESS)
        result = cu.fill(addr, 7, 1024);
    if (result == CUDA_SUCCESS)
        result = cu.context_synchronize();
    if (result == CUDA_SUCCESS)
        result = cu.export_handle(&descriptor, handle, POSIX, 0);
    if (result == CUDA_SUCCESS && !give_descriptor(descriptor))
        result = CUDA_ERROR_OPERATING_SYSTEM;
    return result;
}

static CUresult import_page(void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;

    CUresult result =
        cu.import_handle(&handle, (void *)(intptr_t)get_descriptor(), POSIX);
    if (result == CUDA_SUCCESS)
        result = show(handle, &addr);
    return result == CUDA_SUCCESS ? read_and_write(addr) : result;
}

static CUresult export_event(void)
{
    CUipcEventHandle ipc;
    CUevent event;

    CUresult result =
        cu.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = cu.event_record(event, NULL);
    if (result == CUDA_SUCCESS)
        result = cu.ipc_get_event(&ipc, event);
    if (result == CUDA_SUCCESS && !give_bytes(&ipc, sizeof ipc))
        result = CUDA_ERROR_OPERATING_SYSTEM;
    return result;
}

static CUresult open_event(void)
{
    CUipcEventHandle ipc;
    CUevent event;

    if (!get_bytes(&ipc, sizeof ipc))
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = cu.ipc_open_event(&event, ipc);
    if (result == CUDA_SUCCESS)
        result = cu.stream_wait(NULL, event, 0);
    if (result == CUDA_SUCCESS)
        result = cu.event_synchronize(event);
    if (result == CUDA_SUCCESS)
        result = cu.event_query(event);
    return result == CUDA_SUCCESS ? cu.event_destroy(event) : result;
}

static CUresult share_allocation(void)
{
    return run_both(export_allocation, open_allocation);
}

static CUresult share_page(void)
{
    return run_both(export_page, import_page);
}

static CUresult share_event(void)
{
    return run_both(export_event, open_event);
}

// ---- one process

static void check_imported_handle(void)
{
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr addr;
    unsigned value = 0;
    int descriptor = -1;

    if (!expect("create_for_export", create_for_export(&handle), CUDA_SUCCESS) ||
        show(handle, &addr) != CUDA_SUCCESS)
        return;
    cu.fill(addr, 7, 1024);
    cu.context_synchronize();
    expect("export", cu.export_handle(&descriptor, handle, POSIX, 0), CUDA_SUCCESS);
    hide(addr);
    cu.release(handle);
    expect("import_of_what_only_the_descriptor_keeps",
           cu.import_handle(&imported, (void *)(intptr_t)descriptor, POSIX),
           CUDA_SUCCESS);
    close(descriptor);
    if (show(imported, &addr) == CUDA_SUCCESS)
        cu.copy_out(&value, addr, sizeof value);
    check("the_bytes_are_still_there", value == 7);
    hide(addr);
    expect("release_of_what_was_imported", cu.release(imported), CUDA_SUCCESS);
}

static void check_what_is_not_shared(void)
{
    CUmemGenericAllocationHandle handle;
    CUipcEventHandle event_ipc;
    CUipcMemHandle ipc;
    CUdeviceptr addr, opened;
    CUevent event;
    int descriptor = -1;

    create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handle);
    expect_failure("export_of_what_is_not_meant_for_it",
                   cu.export_handle(&descriptor, handle, POSIX, 0));
    if (show(handle, &addr) == CUDA_SUCCESS)
        expect_failure("ipc_of_a_mapped_page", cu.ipc_get_memory(&ipc, addr));
    hide(addr);
    cu.release(handle);
    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    expect_failure("ipc_of_an_event_not_meant_for_it",
                   cu.ipc_get_event(&event_ipc, event));
    cu.event_destroy(event);
    cu.alloc(&addr, 1 << 20);
    expect("ipc_of_an_allocation", cu.ipc_get_memory(&ipc, addr), CUDA_SUCCESS);
    expect_failure("ipc_opened_by_its_own_process",
                   cu.ipc_open_memory(&opened, ipc, 1));
    cu.free(addr);
}

static void check_sharing(void)
{
    int supported = 0;

    cu.device_attribute(
        &supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
    if (!supported) {
        report("waived", "sharing", "the device has no handles of this type");
        return;
    }
    check_imported_handle();
    check_what_is_not_shared();
}
