/* capture.h - the checks of conformance.c about what is captured, and what may be done
 * meanwhile.
 */
#pragma once
#include "report.h"

static void begin(CUstream stream)
{
    cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void ends_with(const char *name, CUstream stream, CUresult expected)
{
    CUgraph graph = NULL;

    expect(name, cu.capture_end(stream, &graph), expected);
    if (graph != NULL)
        cu.graph_destroy(graph);
}

static void check_capture(CUstream stream, CUdeviceptr addr)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    unsigned value = 0;

    cu.fill(addr, 1, 1);
    expect("capture_begin", cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
           CUDA_SUCCESS);
    cu.fill_async(addr, 2, 1, stream);
    cu.capture_status(stream, &status);
    check("a_capture_is_active", status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    expect("capture_end", cu.capture_end(stream, &graph), CUDA_SUCCESS);
    expect("instantiate", cu.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    cu.copy_out(&value, addr, sizeof value);
    check("captured_work_does_not_run", value == 1);
    expect("graph_launch", cu.graph_launch(exec, stream), CUDA_SUCCESS);
    cu.stream_synchronize(stream);
    cu.copy_out(&value, addr, sizeof value);
    check("a_launched_graph_runs", value == 2);
    cu.exec_destroy(exec);
    cu.graph_destroy(graph);
    expect("capture_of_the_default_stream",
           cu.capture_begin(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static void check_what_capture_forbids(CUstream stream, CUdeviceptr addr)
{
    CUevent event, outside;
    CUstream other;
    CUdeviceptr more;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    cu.event_create(&outside, CU_EVENT_DISABLE_TIMING);
    cu.event_record(outside, NULL);
    begin(stream);
    expect("synchronize_of_a_capturing_stream", cu.stream_synchronize(stream),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with("that_invalidates_the_capture", stream,
              CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(stream);
    cu.event_record(event, stream);
    expect("query_of_a_captured_event", cu.event_query(event),
           CUDA_ERROR_CAPTURED_EVENT);
    cu.capture_status(stream, &status);
    note("status_after_query_of_a_captured_event", "%d", (int)status);
    cu.capture_end(stream, &(CUgraph){NULL});
    begin(stream);
    expect("wait_for_an_event_outside", cu.stream_wait(stream, outside, 0),
           CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    cu.capture_end(stream, &(CUgraph){NULL});
    begin(stream);
    expect("alloc_while_capturing", cu.alloc(&more, page),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cu.capture_end(stream, &(CUgraph){NULL});
    begin(stream);
    cu.capture_mode(&mode);
    expect("alloc_while_capturing_relaxed", cu.alloc(&more, page), CUDA_SUCCESS);
    cu.capture_mode(&mode);
    ends_with("that_keeps_the_capture", stream, CUDA_SUCCESS);
    cu.free(more);
    cu.stream_create(&other, CU_STREAM_NON_BLOCKING);
    begin(stream);
    cu.fill_async(addr, 1, 1, stream);
    cu.event_record(event, stream);
    cu.stream_wait(other, event, 0);
    cu.fill_async(addr, 2, 1, other);
    ends_with("a_stream_that_did_not_join", stream, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    cu.stream_destroy(other);
    cu.stream_create(&other, CU_STREAM_DEFAULT);
    begin(other);
    expect("default_stream_while_a_blocking_one_captures",
           cu.capture_status(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    cu.capture_end(other, &(CUgraph){NULL});
    cu.stream_destroy(other);
    cu.event_destroy(event);
    cu.event_destroy(outside);
}

// Whether the calls of virtual memory management spoil a capture is not documented.
static void note_in_capture(const char *name, CUstream stream, CUresult result)
{
    CUgraph graph = NULL;

    CUresult end = cu.capture_end(stream, &graph);
    note(name, "%s, then the capture ends with %s", name_of(result), name_of(end));
    if (graph != NULL)
        cu.graph_destroy(graph);
}

static void note_what_capture_allows(CUstream stream)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;
    CUevent event;

    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    cu.event_record(event, NULL);
    cu.reserve(&addr, page, 0, 0, 0);
    begin(stream);
    note_in_capture("event_query_in_capture", stream, cu.event_query(event));
    begin(stream);
    note_in_capture("create_in_capture", stream,
                    create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handle));
    begin(stream);
    note_in_capture("map_in_capture", stream, cu.map(addr, page, 0, handle, 0));
    begin(stream);
    note_in_capture("set_access_in_capture", stream, open_to_device(addr, page));
    begin(stream);
    note_in_capture("unmap_in_capture", stream, cu.unmap(addr, page));
    begin(stream);
    note_in_capture("release_in_capture", stream, cu.release(handle));
    cu.unmap(addr, page); // in case that was refused
    cu.release(handle);
    cu.unreserve(addr, page);
    cu.event_destroy(event);
}

static void check_captures(void)
{
    CUstream stream;
    CUdeviceptr addr;

    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    cu.alloc(&addr, page);
    check_capture(stream, addr);
    check_what_capture_forbids(stream, addr);
    note_what_capture_allows(stream);
    cu.free(addr);
    cu.stream_destroy(stream);
}
