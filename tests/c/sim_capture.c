/* Capture of streams into graphs, and what it forbids meanwhile. */
#include "sim_check.h"

#include <pthread.h>

static CUstream stream;
static CUdeviceptr addr;
static int *pinned;

// A stream, device memory that is 0 and pinned memory that is 0.
static void prepare(void)
{
    void *place;

    start(NULL);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&addr, PAGE));
    OK(cuMemsetD8(addr, 0, PAGE));
    OK(cuMemHostAlloc(&place, 64, 0));
    pinned = place;
}

static void begin(void)
{
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraphExec end_and_instantiate(void)
{
    CUgraph graph;
    CUgraphExec exec;

    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void ends_with(CUresult expected)
{
    CUgraph graph;

    CHECK_RESULT(cuStreamEndCapture(stream, &graph), expected);
    CHECK(graph == NULL);
}

static void test_captured_work_runs_at_each_launch_and_not_before(void)
{
    prepare();
    begin();
    OK(cuMemsetD32Async(addr, 7, 1, stream));
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, stream));
    CUgraphExec exec = end_and_instantiate();
    OK(cuCtxSynchronize());
    CHECK(pinned[0] == 0);
    for (int i = 0; i < 2; i++) {
        pinned[0] = 0;
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        CHECK(pinned[0] == 7);
    }
    OK(cuGraphExecDestroy(exec));
    CHECK(stats().misuse_count == 0);
}

static void test_a_capture_has_a_status_and_a_unique_id(void)
{
    CUstreamCaptureStatus status;
    cuuint64_t first, second;
    size_t count;
    const CUgraphNode *nodes;
    CUgraph graph;

    prepare();
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    begin();
    OK(cuMemsetD32Async(addr, 7, 1, stream));
    OK(cuStreamGetCaptureInfo(stream, &status, &first, &graph, &nodes, NULL, &count));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1 && graph != NULL);
    OK(cuGraphExecDestroy(end_and_instantiate()));
    begin();
    OK(cuStreamGetCaptureInfo(stream, &status, &second, NULL, NULL, NULL, NULL));
    CHECK(second != first);
}

static void test_other_streams_join_by_events(void)
{
    CUstreamCaptureStatus status;

    prepare();
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent fork_event = make_event(CU_EVENT_DISABLE_TIMING);
    CUevent join_event = make_event(CU_EVENT_DISABLE_TIMING);
    begin();
    OK(cuMemsetD32Async(addr, 7, 1, stream));
    OK(cuEventRecord(fork_event, stream));
    OK(cuStreamWaitEvent(other, fork_event, 0));
    OK(cuStreamIsCapturing(other, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, other));
    OK(cuEventRecord(join_event, other));
    OK(cuStreamWaitEvent(stream, join_event, 0));
    CUgraphExec exec = end_and_instantiate();
    OK(cuStreamIsCapturing(other, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(pinned[0] == 7);
}

static void test_a_stream_joins_each_capture_anew(void)
{
    const CUgraphNode *nodes;
    CUstreamCaptureStatus status;
    size_t count;

    prepare();
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < 2; i++) {
        begin();
        OK(cuMemsetD32Async(addr, 7, 1, stream));
        OK(cuEventRecord(event, stream));
        OK(cuStreamWaitEvent(other, event, 0));
        OK(cuStreamGetCaptureInfo(other, &status, NULL, NULL, &nodes, NULL, &count));
        CHECK(count == 1);
        OK(cuMemsetD32Async(addr, 8, 1, other));
        OK(cuEventRecord(event, other));
        OK(cuStreamWaitEvent(stream, event, 0));
        OK(cuGraphExecDestroy(end_and_instantiate()));
    }
}

static void test_an_external_event_is_recorded_at_each_launch(void)
{
    prepare();
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    begin();
    OK(cuMemsetD32Async(addr, 7, 1, stream));
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    CUgraphExec exec = end_and_instantiate();
    OK(cuEventQuery(event));
    OK(cuGraphLaunch(exec, stream));
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(event));
    OK(cuStreamQuery(stream));
    OK(cuEventDestroy(event));
    CHECK_RESULT(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK(misuse_says("an event that was destroyed"));
}

static void test_a_stream_that_does_not_join_again_spoils_the_capture(void)
{
    prepare();
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent fork_event = make_event(CU_EVENT_DISABLE_TIMING);
    begin();
    OK(cuMemsetD32Async(addr, 7, 1, stream));
    OK(cuEventRecord(fork_event, stream));
    OK(cuStreamWaitEvent(other, fork_event, 0));
    OK(cuMemcpyDtoHAsync(pinned, addr, 4, other));
    ends_with(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

static void test_waiting_for_work_outside_the_capture_is_refused(void)
{
    prepare();
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord(event, NULL));
    begin();
    CHECK_RESULT(cuStreamWaitEvent(stream, event, 0),
                 CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_waiting_for_the_capturing_stream_is_refused(void)
{
    CUstreamCaptureStatus status;

    prepare();
    begin();
    CHECK_RESULT(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK_RESULT(cuMemsetD32Async(addr, 7, 1, stream),
                 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamSynchronize(stream));
}

static void test_waiting_for_the_context_is_refused(void)
{
    prepare();
    begin();
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_asking_for_a_captured_event_is_refused(void)
{
    prepare();
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    begin();
    OK(cuEventRecord(event, stream));
    CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_allocation_is_refused_in_global_mode_unless_relaxed(void)
{
    CUdeviceptr more;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    prepare();
    begin();
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc(&more, PAGE));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK_RESULT(cuMemAlloc(&more, PAGE), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_unmapping_and_releasing_are_refused_meanwhile(void)
{
    prepare();
    CUdeviceptr pages = reserve(PAGE);
    CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
    begin();
    map_open(pages, PAGE, handle); // as expandable segments do
    CHECK_RESULT(cuMemUnmap(pages, PAGE), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_RESULT(cuMemRelease(handle), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuMemUnmap(pages, PAGE));
    OK(cuMemRelease(handle));
}

static void *allocate_elsewhere(void *context)
{
    CUdeviceptr more;
    static CUresult result;

    OK(cuCtxSetCurrent(context));
    result = cuMemAlloc(&more, PAGE);
    return &result;
}

static CUresult allocate_in_another_thread(void)
{
    CUcontext context;
    pthread_t thread;
    void *result;

    OK(cuCtxGetCurrent(&context));
    CHECK(pthread_create(&thread, NULL, allocate_elsewhere, context) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    return *(CUresult *)result;
}

static void test_the_mode_says_whether_other_threads_are_held_to_it(void)
{
    prepare();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(allocate_in_another_thread());
    OK(cuGraphExecDestroy(end_and_instantiate()));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(allocate_in_another_thread(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void *end_elsewhere(void *unused)
{
    static CUresult result;
    CUgraph graph;

    (void)unused;
    result = cuStreamEndCapture(stream, &graph);
    return &result;
}

static void test_only_the_thread_that_began_may_end_it(void)
{
    pthread_t thread;
    void *result;

    prepare();
    begin();
    CHECK(pthread_create(&thread, NULL, end_elsewhere, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(*(CUresult *)result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    OK(cuGraphExecDestroy(end_and_instantiate()));
}

static void test_the_default_stream_is_refused_while_a_blocking_stream_captures(void)
{
    CUstreamCaptureStatus status;

    prepare();
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    begin();
    CHECK_RESULT(cuStreamIsCapturing(NULL, &status),
                 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK_RESULT(cuMemsetD32Async(addr, 7, 1, NULL),
                 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_the_default_stream_cannot_capture(void)
{
    prepare();
    CHECK_RESULT(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED),
                 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static void test_a_destroyed_graph_is_noticed(void)
{
    CUgraph graph;
    CUgraphExec exec;

    prepare();
    begin();
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    CHECK_RESULT(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("was destroyed"));
    OK(cuGraphExecDestroy(exec));
    CHECK_RESULT(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
}

static CUgraph end_capture(void)
{
    CUgraph graph;

    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void test_captured_allocations_keep_their_address_and_their_memory(void)
{
    CUdeviceptr kept, passing;

    prepare();
    uint64_t before = stats().used_bytes;
    begin();
    OK(cuMemAllocAsync(&kept, PAGE, stream));
    OK(cuMemAllocAsync(&passing, PAGE, stream));
    OK(cuMemsetD32Async(passing, 7, 1, stream));
    OK(cuMemcpyDtoDAsync(kept, passing, 4, stream));
    OK(cuMemFreeAsync(passing, stream));
    CUgraphExec exec = end_and_instantiate();
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(exec, stream));
        OK(cuMemcpyDtoHAsync(pinned, kept, 4, stream));
        OK(cuStreamSynchronize(stream));
        CHECK(pinned[0] == 7);
        pinned[0] = 0;
    }
    OK(cuGraphExecDestroy(exec));
    CHECK(stats().used_bytes == before + PAGE); // the launch left one in use
    OK(cuMemFreeAsync(kept, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(stats().used_bytes == before);
    CHECK(stats().misuse_count == 0);
}

static void test_a_capture_does_not_free_what_it_did_not_allocate(void)
{
    CUdeviceptr other;

    prepare();
    OK(cuMemAllocAsync(&other, PAGE, stream));
    begin();
    CHECK_RESULT(cuMemFreeAsync(other, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static CUgraph capture_of_value(unsigned value, bool copies_back)
{
    begin();
    OK(cuMemsetD32Async(addr, value, 1, stream));
    if (copies_back)
        OK(cuMemcpyDtoHAsync(pinned, addr, 4, stream));
    else
        OK(cuMemsetD32Async(addr, value, 1, stream));
    return end_capture();
}

static void test_an_executable_graph_takes_over_an_equal_graph(void)
{
    CUgraphExecUpdateResultInfo info;
    CUgraphExec exec;

    prepare();
    CUgraph first = capture_of_value(7, true), second = capture_of_value(8, true);
    CUgraph other = capture_of_value(9, false);
    OK(cuGraphInstantiateWithFlags(&exec, first, 0));
    OK(cuGraphExecUpdate(exec, second, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(pinned[0] == 8);
    CHECK_RESULT(cuGraphExecUpdate(exec, other, &info),
                 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    pinned[0] = 0;
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(pinned[0] == 8); // as before
}

static void test_a_graph_may_be_made_executable_more_than_once(void)
{
    CUgraphExec exec[2];

    prepare();
    CUgraph graph = capture_of_value(7, true);
    for (int i = 0; i < 2; i++)
        OK(cuGraphInstantiateWithFlags(&exec[i], graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphExecDestroy(exec[0]));
    OK(cuGraphLaunch(exec[1], stream));
    OK(cuStreamSynchronize(stream));
    CHECK(pinned[0] == 7);
}

int main(void)
{
    run(test_captured_allocations_keep_their_address_and_their_memory);
    run(test_a_capture_does_not_free_what_it_did_not_allocate);
    run(test_an_executable_graph_takes_over_an_equal_graph);
    run(test_a_graph_may_be_made_executable_more_than_once);
    run(test_captured_work_runs_at_each_launch_and_not_before);
    run(test_a_capture_has_a_status_and_a_unique_id);
    run(test_other_streams_join_by_events);
    run(test_a_stream_joins_each_capture_anew);
    run(test_an_external_event_is_recorded_at_each_launch);
    run(test_a_stream_that_does_not_join_again_spoils_the_capture);
    run(test_waiting_for_work_outside_the_capture_is_refused);
    run(test_waiting_for_the_capturing_stream_is_refused);
    run(test_waiting_for_the_context_is_refused);
    run(test_asking_for_a_captured_event_is_refused);
    run(test_allocation_is_refused_in_global_mode_unless_relaxed);
    run(test_unmapping_and_releasing_are_refused_meanwhile);
    run(test_the_mode_says_whether_other_threads_are_held_to_it);
    run(test_only_the_thread_that_began_may_end_it);
    run(test_the_default_stream_is_refused_while_a_blocking_stream_captures);
    run(test_the_default_stream_cannot_capture);
    run(test_a_destroyed_graph_is_noticed);
    return finish();
}
