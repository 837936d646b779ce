"""CUDA graphs and cudagraph trees: their memory stays theirs."""

import oomph
import pytest
import torch
from support import GIB, MIB, Simulated

simulated = Simulated("1GiB,context=0", "reserve:0,offload:off")
spilling = Simulated("1GiB,context=0", "reserve:0,host_limit:4GiB")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def segments(pool) -> list[dict]:
    return torch.cuda.memory_snapshot(pool)


def held(pool) -> int:
    return sum(segment["total_size"] for segment in segments(pool))


def live_addresses() -> list[int]:
    return [
        block["address"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def capture(size_bytes: int = 8 * MIB, pool=None):
    """A graph that fills a block; gives the graph and the block."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        block = take(size_bytes)
        block.fill_(1)
        take(size_bytes).fill_(2)  # freed inside
    return graph, block


@simulated
def test_a_graph_is_captured_and_replayed():
    from remote import sim_stats

    graph, block = capture()
    before = sim_stats().executed_count
    graph.replay()
    torch.cuda.synchronize()
    assert sim_stats().executed_count > before
    del block


@simulated
def test_a_captured_block_belongs_to_the_graphs_pool():
    graph, block = capture()
    addresses = [b["address"] for s in segments(graph.pool()) for b in s["blocks"]]
    assert block.data_ptr() in addresses
    del block


@simulated
def test_the_memory_of_a_graph_survives_empty_cache():
    graph, block = capture()
    before = held(graph.pool())
    del block
    torch.cuda.empty_cache()
    assert held(graph.pool()) == before
    graph.replay()
    torch.cuda.synchronize()


@simulated
def test_the_memory_of_a_graph_survives_pressure():
    graph, block = capture(256 * MIB)
    del block
    kept = take(256 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        take(300 * MIB)
    graph.replay()
    torch.cuda.synchronize()
    del kept


@spilling
def test_the_memory_of_a_graph_survives_rescues():
    graph, block = capture(256 * MIB)
    del block
    kept = [take(256 * MIB) for _ in range(6)]
    graph.replay()
    torch.cuda.synchronize()
    del kept


@simulated
def test_the_memory_of_a_graph_is_free_after_it():
    graph, block = capture(400 * MIB)
    del block, graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    take(GIB)


@simulated
def test_a_result_outlives_its_graph():
    graph, block = capture()
    graph.reset()
    torch.cuda.empty_cache()
    block.fill_(3)
    torch.cuda.synchronize()
    assert block.data_ptr() in live_addresses()
    del block


@simulated
def test_graphs_can_share_a_pool():
    first, a = capture()
    address = a.data_ptr()
    del a
    second, b = capture(pool=first.pool())
    assert b.data_ptr() == address
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    del first, b
    torch.cuda.empty_cache()
    assert held(second.pool()) > 0


@simulated
def test_a_pool_handle_can_be_had_beforehand():
    pool = torch.cuda.graph_pool_handle()
    graph, block = capture(pool=pool)
    assert graph.pool() == pool
    del block


@simulated
def test_a_capture_may_use_side_streams():
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = take(4 * MIB)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = take(4 * MIB)
            b.copy_(a)
        torch.cuda.current_stream().wait_stream(side)
        a.copy_(b)
    streams = {segment["stream"] for segment in segments(graph.pool())}
    assert len(streams) == 2
    graph.replay()
    torch.cuda.synchronize()
    del a, b


@simulated
def test_record_stream_in_a_capture_waits_for_its_end():
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = take(4 * MIB)
        address = a.data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a.fill_(1)
        a.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        del a
        others = [take(4 * MIB) for _ in range(10)]
        assert address not in [block.data_ptr() for block in others]
    graph.replay()
    torch.cuda.synchronize()
    del others


@simulated
def test_a_capture_does_not_take_blocks_of_others():
    free = take(16 * MIB)
    address = free.data_ptr()
    del free
    graph, block = capture()
    assert not address <= block.data_ptr() < address + 16 * MIB
    del block


@simulated
def test_other_threads_allocate_while_one_captures():
    import threading

    found = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for size in (1000, 3 * MIB, 40 * MIB):
                found.append(take(size))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        block = take(4 * MIB)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        block.fill_(1)
    assert len(found) == 3
    held_addresses = [b["address"] for s in segments(graph.pool()) for b in s["blocks"]]
    assert not {t.data_ptr() for t in found} & set(held_addresses)
    graph.replay()
    torch.cuda.synchronize()
    found.clear()
    del block


@simulated
def test_a_shortage_in_a_capture_is_an_error_and_leaves_no_mess():
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.OutOfMemoryError), torch.cuda.graph(graph):
        take(2 * GIB)
    torch.cuda.synchronize()
    del graph
    again, block = capture()
    again.replay()
    torch.cuda.synchronize()
    del block


unprepared = Simulated("1GiB,context=0", "reserve:0,host_limit:4GiB")


@unprepared
def test_a_capture_that_nothing_let_expect_is_an_error_that_says_what_helps():
    import oomph

    kept = take(GIB - 4 * MIB)  # what the generator keeps for a graph must fit
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"oomph\.evict"),
        torch.cuda.graph(graph),
    ):
        take(8 * MIB)
    assert oomph.stats()["rescues"] == 0
    del kept, graph


@simulated
def test_whole_training_steps_can_be_captured():
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.randn(64, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    graph.reset()


@simulated
def test_make_graphed_callables_trains():
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
    ).cuda()
    x = torch.randn(32, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        graphed(torch.randn(32, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()


# ---- cudagraph trees


class Trees:
    """cudagraph trees with all their assertions on."""

    def __enter__(self):
        from torch._inductor import config
        from torch._inductor import cudagraph_trees as trees

        self.trees = trees
        trees.reset_cudagraph_trees()
        self.patch = config.patch(
            {
                "triton.slow_path_cudagraph_asserts": True,
                "triton.fast_path_cudagraph_asserts": True,
                "triton.cudagraph_trees": True,
            }
        )
        self.patch.__enter__()
        return self

    def __exit__(self, *_) -> None:
        self.trees.reset_cudagraph_trees()
        self.patch.__exit__(None, None, None)

    def graphify(self, function, x: torch.Tensor, output_count: int):
        graphed = self.trees.cudagraphify_impl(
            function,
            [x],
            (),
            device_index=0,
            is_backward=False,
            is_inference=True,
            stack_traces=(None,) * output_count,
        )
        return lambda x: graphed([x.clone()])

    def state(self) -> str:
        manager = self.trees.get_manager(0, create_if_none_exists=False)
        return str(manager.path_state.name)


@simulated
def test_cudagraph_trees_warm_up_record_and_replay():
    def function(args):
        (x,) = args
        args.clear()
        y = x + 1
        return [y * 2, y.sum()]

    x = torch.randn(256, 1024, device="cuda")
    with Trees() as trees, torch.no_grad():
        graphed = trees.graphify(function, x, 2)
        seen = []
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            out = graphed(x)
            seen.append(trees.state())
            assert out[0].shape == x.shape
            del out
        assert seen == ["WARMUP", "RECORDING", "EXECUTION", "EXECUTION", "EXECUTION"]
    del x


@simulated
def test_cudagraph_trees_branch():
    def function(args):
        (x,) = args
        args.clear()
        return [x + 1, x * 2]

    def other(args):
        (x,) = args
        args.clear()
        return [x - 1]

    x = torch.randn(256, 1024, device="cuda")
    with Trees() as trees, torch.no_grad():
        first = trees.graphify(function, x, 2)
        second = trees.graphify(other, x, 1)
        states = []
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            a = first(x)
            states.append(trees.state())
            b = second(a[0])
            states.append(trees.state())
            del a, b
        assert states == [*["WARMUP"] * 2, *["RECORDING"] * 2, *["EXECUTION"] * 4]
        states.clear()
        places = set()
        for _ in range(4):  # another branch: restores the state of the pool
            torch.compiler.cudagraph_mark_step_begin()
            a = first(x)
            states.append(trees.state())
            b = first(a[1])
            states.append(trees.state())
            c = second(b[0])
            states.append(trees.state())
            places.add(tuple(tensor.data_ptr() for tensor in (*a, *b, *c)))
            del a, b, c
        # What the branches share is replayed; nothing is recorded over it, or twice.
        assert states == ["EXECUTION", *["RECORDING"] * 2, *["EXECUTION"] * 9]
        (of_all_steps,) = places
        assert len({*of_all_steps}) == 5
    del x


@spilling
def test_statistics_can_be_read_while_a_stream_captures():
    x = torch.ones(8 * MIB, device="cuda")
    for _ in range(3):
        torch.cuda._sleep(10**9)
        oomph.step()  # its end is not reached before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        assert oomph.stats(0)["steps"] > 0
    graph.replay()
    torch.cuda.synchronize()
    assert oomph.stats(0)["step_ms"] > 0
    del x, y
