/* graphs.h - the checks of conformance.c about graphs that are used again, and
 * together.
 */
#pragma once
#include "capture.h"

// A captured graph that writes `value` to the memory; with `twice`, in two nodes.
static CUgraph capture_fill(CUstream stream, CUdeviceptr addr, unsigned value,
                            bool twice)
{
    CUgraph graph = NULL;

    begin(stream);
    cu.fill_async(addr, value, 1, stream);
    if (twice)
        cu.fill_async(addr, value, 1, stream);
    cu.capture_end(stream, &graph);
    return graph;
}

static unsigned value_after(CUgraphExec exec, CUstream stream, CUdeviceptr addr)
{
    unsigned value = 0;

    cu.graph_launch(exec, stream);
    cu.stream_synchronize(stream);
    cu.copy_out(&value, addr, sizeof value);
    return value;
}

static void check_updates(CUstream stream, CUdeviceptr addr)
{
    CUgraphExecUpdateResultInfo info;
    CUgraphExec exec, second;
    CUgraph seven = capture_fill(stream, addr, 7, false);
    CUgraph eight = capture_fill(stream, addr, 8, false);
    CUgraph other = capture_fill(stream, addr, 9, true);

    expect("graph_instantiate", cu.graph_instantiate(&exec, seven, 0), CUDA_SUCCESS);
    expect("graph_instantiate_again", cu.graph_instantiate(&second, seven, 0),
           CUDA_SUCCESS);
    expect("graph_update", cu.graph_update(exec, eight, &info), CUDA_SUCCESS);
    check("graph_update_says_so", info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    check("graph_update_has_effect", value_after(exec, stream, addr) == 8);
    check("graph_update_has_none_on_others", value_after(second, stream, addr) == 7);
    expect("graph_update_of_another_topology", cu.graph_update(exec, other, &info),
           CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    check("graph_update_that_fails_changes_nothing",
          value_after(exec, stream, addr) == 8);
    cu.exec_destroy(exec);
    cu.exec_destroy(second);
    cu.graph_destroy(seven);
    cu.graph_destroy(eight);
    cu.graph_destroy(other);
}

static void check_captured_memory(CUstream stream)
{
    CUdeviceptr kept = 0;
    CUgraph graph = NULL;
    CUgraphExec exec;

    begin(stream);
    bool can = cu.alloc_async(&kept, page, stream) == CUDA_SUCCESS;
    if (can)
        cu.fill_async(kept, 7, 1, stream);
    CUresult result = cu.capture_end(stream, &graph);
    if (!can) {
        report("waived", "captured_allocation", "the driver refuses it");
        return;
    }
    expect("captured_allocation", result, CUDA_SUCCESS);
    expect("captured_allocation_instantiate",
           cu.graph_instantiate(&exec, graph,
                                CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH),
           CUDA_SUCCESS);
    check("captured_allocation_is_written", value_after(exec, stream, kept) == 7);
    check("captured_allocation_keeps_its_address",
          value_after(exec, stream, kept) == 7);
    expect("captured_allocation_is_freed_outside", cu.free_async(kept, stream),
           CUDA_SUCCESS);
    cu.stream_synchronize(stream);
    cu.exec_destroy(exec);
    cu.graph_destroy(graph);
}

// Memory that a graph allocates and gives back itself: `value` goes through it to
// `out`.
static CUgraph capture_scratch(CUstream stream, CUdeviceptr out, unsigned value)
{
    CUdeviceptr scratch = 0;
    CUgraph graph = NULL;

    begin(stream);
    if (cu.alloc_async(&scratch, page, stream) == CUDA_SUCCESS) {
        cu.fill_async(scratch, value, 1, stream);
        cu.copy_across_async(out, scratch, sizeof value, stream);
        cu.free_async(scratch, stream);
    }
    cu.capture_end(stream, &graph);
    return graph;
}

static void check_scratch(CUstream stream, CUdeviceptr addr)
{
    CUgraph graphs[2] = {capture_scratch(stream, addr, 21),
                         capture_scratch(stream, addr, 22)};
    CUgraphExec execs[2] = {NULL, NULL};

    for (int i = 0; i < 2; i++)
        expect("instantiate_with_memory_of_its_own",
               cu.graph_instantiate(&execs[i], graphs[i], 0), CUDA_SUCCESS);
    bool good = true;
    for (int i = 0; i < 4; i++)
        good &= value_after(execs[i % 2], stream, addr) == 21u + i % 2;
    check("graphs_take_turns_with_memory_of_their_own", good);
    for (int i = 0; i < 2; i++) {
        cu.exec_destroy(execs[i]);
        cu.graph_destroy(graphs[i]);
    }
}

// A graph that passes `value` through `shared` to `out`.
static CUgraphExec through(CUstream stream, CUdeviceptr shared, CUdeviceptr out,
                           unsigned value)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    begin(stream);
    cu.fill_async(shared, value, 1, stream);
    cu.copy_across_async(out, shared, sizeof value, stream);
    cu.capture_end(stream, &graph);
    expect("instantiate_one_of_several", cu.graph_instantiate(&exec, graph, 0),
           CUDA_SUCCESS);
    cu.graph_destroy(graph); // what was instantiated lives on
    return exec;
}

// As PyTorch has several graphs on one pool: they use the same memory one after
// another.
static void check_shared_memory(CUstream stream, CUdeviceptr addr)
{
    unsigned values[2] = {0, 0};
    CUgraphExec first = through(stream, addr, addr + 512, 31);
    CUgraphExec second = through(stream, addr, addr + 1024, 32);

    cu.fill(addr + 512, 0, 256);
    cu.context_synchronize();
    for (int i = 0; i < 3; i++) {
        cu.graph_launch(first, stream);
        cu.graph_launch(second, stream);
    }
    cu.stream_synchronize(stream);
    cu.copy_out(&values[0], addr + 512, sizeof values[0]);
    cu.copy_out(&values[1], addr + 1024, sizeof values[1]);
    check("graphs_of_one_stream_run_one_after_another",
          values[0] == 31 && values[1] == 32);
    cu.exec_destroy(first);
    cu.exec_destroy(second);
}

static void count_call(void *calls)
{
    ++*(int *)calls;
}

// Two branches and a host function: nodes are counted, and each runs at each launch.
static void check_branches(CUstream stream, CUdeviceptr addr)
{
    CUevent fork, join;
    CUstream other;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    size_t nodes = 0;
    unsigned value = 0;
    int calls = 0;

    cu.stream_create(&other, CU_STREAM_NON_BLOCKING);
    cu.event_create(&fork, CU_EVENT_DISABLE_TIMING);
    cu.event_create(&join, CU_EVENT_DISABLE_TIMING);
    begin(stream);
    cu.event_record(fork, stream);
    cu.stream_wait(other, fork, 0);
    cu.fill_async(addr, 41, 1, stream);
    cu.fill_async(addr + 512, 42, 1, other);
    cu.event_record(join, other);
    cu.stream_wait(stream, join, 0);
    cu.launch_host(stream, count_call, &calls);
    expect("capture_of_two_branches", cu.capture_end(stream, &graph), CUDA_SUCCESS);
    cu.graph_nodes(graph, NULL, &nodes);
    check("events_that_order_a_capture_are_no_nodes", nodes == 3);
    cu.graph_instantiate(&exec, graph, 0);
    for (int i = 0; i < 3; i++)
        cu.graph_launch(exec, stream);
    cu.stream_synchronize(stream);
    check("a_captured_host_function_is_called_at_each_launch", calls == 3);
    cu.copy_out(&value, addr + 512, sizeof value);
    check("the_other_branch_runs_too", value == 42);
    cu.exec_destroy(exec);
    cu.graph_destroy(graph);
    cu.event_destroy(fork);
    cu.event_destroy(join);
    cu.stream_destroy(other);
}

static void check_graphs(void)
{
    CUstream stream;
    CUdeviceptr addr;

    if (cu.stream_create(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        cu.alloc(&addr, page) != CUDA_SUCCESS)
        return;
    check_updates(stream, addr);
    check_captured_memory(stream);
    check_scratch(stream, addr);
    check_shared_memory(stream, addr);
    check_branches(stream, addr);
    cu.free(addr);
    cu.stream_destroy(stream);
}
