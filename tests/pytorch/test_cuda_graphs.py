"""Captured graphs, their memory and its figures: after PyTorch's test_cuda.py."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from both import both, cards, keep_busy, pool_segments, stat, take_mib
from support import KIB, MIB, cuda_runtime

Graph = torch.cuda.CUDAGraph


@contextlib.contextmanager
def beside() -> Iterator[torch.cuda.Stream]:
    """A stream that starts after the current one, and ends before it goes on."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield stream
    torch.cuda.current_stream().wait_stream(stream)


@contextlib.contextmanager
def capturing(graph: Graph, *pool: Any) -> Iterator[None]:
    """By hand, without what torch.cuda.graph does besides."""
    graph.capture_begin(*pool)
    yield
    graph.capture_end()


def add_up(x: torch.Tensor, value: int, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x + value
    return x


@both
def test_graph_is_current_stream_capturing():
    asked = torch.cuda.is_current_stream_capturing
    assert not asked()
    with warnings.catch_warnings(), beside():
        warnings.simplefilter("ignore")  # the graph is empty
        assert not asked()
        with capturing(Graph()):
            assert asked()
        assert not asked()


@both
def test_graph_capture_simple():
    with beside():
        a, graph = torch.full((1000,), 1, device="cuda"), Graph()
        torch.cuda.empty_cache()
        with capturing(graph):
            b = add_up(a, 1, 10)
    graph.replay()
    assert b.sum().item() == 11000


@both
def test_graph_capture_reset_recapture():
    graph = Graph()
    with beside():
        a = torch.full((1000,), 1, device="cuda")
        with capturing(graph):
            b = add_up(a, 1, 10)
    graph.replay()
    assert b.sum().item() == 11000
    graph.reset()
    with beside(), capturing(graph):
        b.fill_(2)
        c = add_up(b, 2, 10)
    graph.replay()
    assert c.sum().item() == 22000
    graph.reset()


@both
def test_graph_debugdump():
    x, graph = torch.randn(1000, device="cuda"), Graph()
    graph.enable_debug_mode()
    other = torch.cuda.Stream()
    with beside() as stream, capturing(graph):
        z = x + x
        other.wait_stream(stream)
        with torch.cuda.stream(other):
            w = z + x
        stream.wait_stream(other)
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        graph.debug_dump(os.path.join(folder, "graph.dot"))
    del w


@both
def test_graph_timing():
    x, graph = torch.randn(1000, device="cuda"), Graph()
    events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
    with torch.cuda.graph(graph):
        events[0].record()
        _ = x + x
        events[1].record()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    assert events[0].elapsed_time(events[1]) > 0


@both
def test_graph_error():
    with pytest.raises(RuntimeError, match="non-default stream"):
        Graph().capture_begin()


@both
def test_graph_warn_if_has_zero_nodes():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with beside(), capturing(Graph()):
            pass
    assert any("The CUDA Graph is empty" in str(w.message) for w in caught)


@pytest.mark.long
@both
def test_graph_capture_oom():
    """Twice: the failed capture leaves nothing behind that the next would miss."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()  # graphs before may have left their seeds
    for _ in range(2):
        with (
            pytest.raises(RuntimeError, match="out of memory"),
            torch.cuda.graph(Graph()),
        ):
            torch.zeros(1 << 40, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


@both
def test_graph_manual_seed_mismatch_raises():
    torch.cuda.manual_seed(0)
    with (
        pytest.raises(
            RuntimeError, match="set_current_seed can be called during stream"
        ),
        torch.cuda.graph(Graph()),
    ):
        torch.cuda.manual_seed(1)


@both
def test_repeat_graph_capture_cublas_workspace_memory():
    a, b = torch.rand(64, 32, device="cuda"), torch.rand(32, 16, device="cuda")
    torch.mm(a, b)
    free, _ = torch.cuda.mem_get_info()
    for _ in range(30):
        graph = Graph()
        with torch.cuda.graph(graph):
            torch.mm(a, b)
        graph.replay()
    assert free - torch.cuda.mem_get_info()[0] < 100_000_000


@both
def test_memory_stats_of_multiple_generators_and_graphs():
    """Two blocks for each state of a generator, however many graphs use it."""

    def figures() -> tuple[int, int]:
        return stat("active.all.current"), stat("active_bytes.all.current")

    def record(graph: Graph) -> None:
        with beside(), capturing(graph):
            torch.ones(1, device="cuda")
        graph.replay()

    default = torch.cuda.default_generators[0]
    for graph_count, state_count in ((1, 1), (3, 2), (6, 10)):
        before = figures()
        graphs = [Graph() for _ in range(graph_count)]
        states = [default.graphsafe_get_state()]
        states += [default.clone_state() for _ in range(1, state_count)]
        for graph in graphs:
            for state in states:
                graph.register_generator_state(state)
            record(graph)
        blocks = 2 * state_count
        assert figures() == (before[0] + blocks, before[1] + blocks * 512)
        del graph
        graphs.clear()
        gc.collect()
        torch.cuda.empty_cache()
        assert figures() == before


@both
def test_graph_record_stream():
    """What waits for another stream is not looked at while a graph is captured."""
    problem, a = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    first, second, third = (torch.cuda.Stream() for _ in range(3))
    graph = Graph()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        problem.record_stream(first)
        keep_busy()
        problem.fill_(1.0)
    del problem
    with torch.cuda.stream(second), capturing(graph):
        b = a.clone()
        third.wait_stream(second)
        with torch.cuda.stream(third):
            b.fill_(1.0)
            b.record_stream(third)
            del b
        second.wait_stream(third)
    torch.cuda.synchronize()
    for _ in range(8):
        torch.zeros(3, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    del graph
    assert stat("active_bytes.all.current") == stat("allocated_bytes.all.current")


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@both
def test_cuda_graph_error_options(mode):
    """Another thread may allocate meanwhile; how it may fail depends on the mode."""
    stream = torch.cuda.Stream()

    def body() -> torch.Tensor:
        x = torch.zeros(2000, device="cuda")
        return x + x + x

    def allocate() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            block = torch.cuda.caching_allocator_alloc(64 * KIB)
        torch.cuda.caching_allocator_delete(block)
        done.append(True)

    done: list[bool] = []
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    with torch.cuda.graph(Graph(), stream=stream, capture_error_mode=mode):
        body()
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    assert done == [True]


@both
def test_cuda_graph_raw_graph_keep_graph_false():
    x, graph = torch.zeros(2000, device="cuda"), Graph(keep_graph=False)
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        _ = x + 1
    with pytest.raises(RuntimeError, match="only when keep_graph=true"):
        graph.instantiate()
    with pytest.raises(RuntimeError, match=r"keep_graph=(true|false)"):  # since 2.15
        graph.raw_cuda_graph()


@both
def test_cuda_graph_raw_graph():
    x, graph = torch.zeros(2000, device="cuda"), Graph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        x += 1
    raw, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    get_nodes = cuda_runtime().cudaGraphGetNodes
    assert get_nodes(raw, None, ctypes.byref(count)) == 0
    assert count.value > 0
    graph.replay()
    assert bool((x == 1).all())


@pytest.mark.parametrize("keep", [True, False])
@both
def test_cuda_graph_raw_graph_exec(keep):
    x, graph = torch.zeros(2000, device="cuda"), Graph(keep_graph=keep)
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        x += 1
    if keep:
        with pytest.raises(
            RuntimeError, match=r"until instantiate\(\) has been called"
        ):
            graph.raw_cuda_graph_exec()
        graph.instantiate()
    assert graph.raw_cuda_graph_exec() != 0
    graph.replay()
    assert bool((x == 1).all())


@both
def test_cuda_graph_raw_graph_reset_and_recapture():
    x, graph = torch.zeros(2000, device="cuda"), Graph(keep_graph=True)
    for step in (1, 2):
        x = torch.zeros(2000, device="cuda")
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            x += step
        for count, anew in ((1, True), (2, True), (3, False)):
            if anew:
                graph.instantiate()
            graph.replay()
            assert bool((x == step * count).all())
        graph.reset()


@both
def test_cuda_graph_allocator_propagates_stream():
    """Another stream that the capture goes over to takes from its pool, too."""
    x, graph = torch.randn(1 << 20, device="cuda"), Graph()
    y = torch.rand_like(x)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        graph.capture_begin()
        z = x + y
    second.wait_stream(first)
    with torch.cuda.stream(second):
        w = z + y
    first.wait_stream(second)
    with torch.cuda.stream(first):
        graph.capture_end()
    found = pool_segments(graph.pool())
    assert len(found) == 2
    assert {s["stream"] for s in found} == {first.cuda_stream, second.cuda_stream}
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(w.cpu(), (x + y + y).cpu())


@both(on=cards())
def test_cuda_graph_tensor_item_not_allowed():
    """It fails, and the process goes on: graphs captured later give memory back.

    In a process apart: PyTorch's own allocator takes the capture for unfinished ever
    after, and ends the process when a MemPool dies.
    """
    a, index = torch.rand(50, 50, device="cuda"), torch.zeros(5, device="cuda").long()
    with (
        pytest.raises(RuntimeError, match="captur|not permitted"),
        torch.cuda.graph(Graph()),
    ):
        a[0] *= a[index[0].item()]
    gc.collect()
    for _ in range(12):
        graph = Graph()
        with torch.cuda.graph(graph):
            take_mib(100)[:8].zero_()
        graph.replay()
        del graph
        torch.cuda.synchronize()
        gc.collect()
    torch.cuda.empty_cache()
    assert stat("reserved_bytes.all.current") <= 24 * MIB
