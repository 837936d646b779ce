/* misuse.h - the checks of conformance.c about calls that make no sense: they must be
 * refused, and leave the context as it was.
 */
#pragma once
#include "capture.h"

static void check_misuse_of_memory(void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr, reserved;
    unsigned value = 0;

    cu.alloc(&addr, page);
    expect("fill_unaligned", cu.fill(addr + 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
    note_result("fill_of_nothing", cu.fill(addr, 1, 0));
    note_result("copy_of_nothing", cu.copy_out(&value, addr, 0));
    expect_failure("copy_to_null", cu.copy_out(NULL, addr, sizeof value));
    cu.free(addr);
    expect("free_twice", cu.free(addr), CUDA_ERROR_INVALID_VALUE);
    expect("free_of_the_stack", cu.free((CUdeviceptr)(uintptr_t)&value),
           CUDA_ERROR_INVALID_VALUE);
    expect_failure("host_free_of_the_stack", cu.host_free(&value));
    cu.reserve(&reserved, page, 0, 0, 0);
    expect_failure("unmap_where_nothing_is_mapped", cu.unmap(reserved, page));
    expect_failure("set_access_where_nothing_is_mapped",
                   open_to_device(reserved, page));
    expect_failure("map_of_no_handle", cu.map(reserved, page, 0, 0, 0));
    create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handle);
    expect_failure("map_outside_of_a_reservation",
                   cu.map(reserved + page * 1024 * 1024, page, 0, handle, 0));
    cu.release(handle);
    cu.unreserve(reserved, page);
    expect_failure("unreserve_twice", cu.unreserve(reserved, page));
    expect_failure("release_of_no_handle", cu.release(0));
}

static void check_misuse_of_streams(void)
{
    CUstream stream;
    CUevent event;
    CUgraph graph = NULL;
    float ms;

    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    cu.event_create(&event, CU_EVENT_DEFAULT);
    expect_failure("record_of_no_event", cu.event_record(NULL, stream));
    expect_failure("wait_for_no_event", cu.stream_wait(stream, NULL, 0));
    expect_failure("stream_of_unknown_flags", cu.stream_create(&(CUstream){NULL}, 64));
    expect_failure("event_of_unknown_flags", cu.event_create(&(CUevent){NULL}, 64));
    expect_failure("host_function_of_nothing", cu.launch_host(stream, NULL, NULL));
    make_busy(stream);
    cu.event_record(event, stream);
    expect("elapsed_of_a_pending_event", cu.elapsed(&ms, event, event),
           CUDA_ERROR_NOT_READY);
    open_gate();
    cu.stream_synchronize(stream);
    expect("end_of_no_capture", cu.capture_end(stream, &graph),
           CUDA_ERROR_ILLEGAL_STATE);
    begin(stream);
    expect("begin_in_a_capture",
           cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
           CUDA_ERROR_ILLEGAL_STATE);
    ends_with("that_ends_as_it_would_have", stream, CUDA_SUCCESS);
    expect_failure("launch_of_no_graph", cu.graph_launch(NULL, stream));
    expect_failure("instantiate_of_no_graph",
                   cu.graph_instantiate(&(CUgraphExec){NULL}, NULL, 0));
    expect_failure("destruction_of_no_graph", cu.graph_destroy(NULL));
    cu.event_destroy(event);
    cu.stream_destroy(stream);
}

static void check_misuse(void)
{
    check_misuse_of_memory();
    check_misuse_of_streams();
    expect("misuse_leaves_the_context_as_it_was", cu.context_synchronize(),
           CUDA_SUCCESS);
}
