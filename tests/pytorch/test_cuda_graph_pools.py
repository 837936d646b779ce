"""Graphs with memory of their own and in one pool: after PyTorch's test_cuda.py."""

from __future__ import annotations

import gc

import pytest
import torch
from both import both, keep_busy, native, stat, version
from support import MIB
from test_cuda_graphs import Graph, beside, capturing


def twice(x: torch.Tensor, value: int) -> torch.Tensor:
    """Has temporaries that die before its result does."""
    first, second = x.clone() + value, x.clone() + value
    return first + second


def shared(how: str) -> tuple:
    """The arguments of the first capture."""
    return (torch.cuda.graph_pool_handle(),) if how == "handle" else ()


def shared_with(first: Graph, arguments: tuple, how: str) -> tuple:
    """Those of the captures after it."""
    return (first.pool(),) if how == "pool" else arguments


sharing = pytest.mark.parametrize("how", ["apart", "pool", "handle"])
SIZE = 1000


@both
def test_graph_two_successive():
    """What two graphs of one pool need is less than what they need apart."""
    reserved = {}
    for how in ("apart", "pool", "handle"):
        torch.cuda.empty_cache()
        graphs = [Graph(), Graph()]
        a = torch.ones(SIZE, device="cuda")
        with beside():
            arguments = shared(how)
            with capturing(graphs[0], *arguments):
                b = a.clone()
                for _ in range(5):
                    b = twice(b, 1)
            arguments = shared_with(graphs[0], arguments, how)
            with capturing(graphs[1], *arguments):
                for _ in range(5):
                    b = twice(b, 1)
        c = a.clone()
        for graph in (*graphs, None):
            for _ in range(2):
                c = twice(c, 3)
            if graph is not None:
                graph.replay()
        assert b.sum().item() == SIZE * 3070
        assert c.sum().item() == SIZE * 442
        reserved[how] = stat("reserved_bytes.all.current")
        del a, b, c, graph
        graphs.clear()
        torch.cuda.synchronize()
    assert reserved["apart"] - reserved["pool"] == 2 * MIB
    assert reserved["apart"] - reserved["handle"] == 2 * MIB


@sharing
@both
def test_graph_concurrent_replay(how):
    """Graphs of one pool may spoil each other; apart they do not."""
    graphs, streams = [Graph(), Graph()], [torch.cuda.Stream() for _ in range(2)]
    a = torch.ones(100_000, device="cuda")
    results = []
    with beside():
        arguments = shared(how)
        for graph, value in zip(graphs, (1, 2), strict=True):
            with capturing(graph, *arguments):
                b = a.clone()
                for _ in range(5):
                    b = twice(b, value)
            arguments = shared_with(graph, arguments, how)
            results.append(b)
    torch.cuda.synchronize()
    if how == "apart":
        with torch.cuda.stream(streams[0]):
            keep_busy()
            streams[1].wait_stream(streams[0])
    for graph, stream in zip(graphs, streams, strict=True):
        with torch.cuda.stream(stream):
            graph.replay()
        if how != "apart":
            stream.synchronize()
    torch.cuda.synchronize()
    if how == "apart":
        assert [int(r.sum()) for r in results] == [a.numel() * 94, a.numel() * 156]
    else:
        ends = [{r.data_ptr() for r in results}, {a.data_ptr()}]
        assert int(results[1].sum()) == a.numel() * 156  # the last one is whole
        assert not ends[0] & ends[1]


@sharing
@both
def test_graph_three_successive(how):
    a = torch.ones(SIZE, device="cuda")
    graphs = [Graph() for _ in range(3)]
    with beside():
        arguments = shared(how)
        with capturing(graphs[0], *arguments):
            b = a.clone()
            c, d = b + 1, b + 2
        arguments = shared_with(graphs[0], arguments, how)
        with capturing(graphs[1], *arguments):
            e = c + 3
            del c
        with capturing(graphs[2], *arguments):
            f = d + 4
    for graph in graphs:
        graph.replay()
    assert (e.sum().item(), f.sum().item()) == (SIZE * 5, SIZE * 7)
    # In another order the third writes where the second reads, in one pool: as native.
    for which in (0, 2, 1):
        graphs[which].replay()
    spoilt = how != "apart"
    assert e.sum().item() == SIZE * (10 if spoilt else 5)
    assert f.sum().item() == SIZE * 7


CASES = {  # size: PyTorch's segments, what they hold, and what without the graph
    512: (1, 2 * MIB, 2 * MIB, "small_pool"),
    MIB: (2, 4 * MIB, 2 * MIB, "small_pool"),
    MIB + 512: (1, 20 * MIB, 20 * MIB, "large_pool"),
    10 * MIB - 512: (2, 40 * MIB, 20 * MIB, "large_pool"),
    10 * MIB + 512: (3, 36 * MIB, 12 * MIB, "large_pool"),
}


@pytest.mark.parametrize("size", CASES)
@both
def test_graph_memory_stats_and_use_result_after_destroy_graph(size):
    segments, held, held_after, pool = CASES[size]
    keys = ("segment", "reserved_bytes", "active", "active_bytes")
    graph = Graph()

    def figures() -> list[int]:
        gc.collect()
        return [stat(f"{key}.{pool}.current") for key in keys]

    def gained() -> list[int]:
        return [now - then for now, then in zip(figures(), before, strict=True)]

    torch.cuda.empty_cache()
    with beside():
        a = torch.ones(size // 4, device="cuda")
        before = figures()
        with capturing(graph):
            b = a.clone()
            for _ in range(5):
                b = b.clone() + 1
    keeps_states = version(torch.__version__) < (2, 15)  # of the random generator
    states = 2 if keeps_states and pool == "small_pool" else 0
    for _ in range(2):
        found = gained()
        if native():
            assert found[:2] == [segments, held]
        else:
            assert size <= found[1] <= held
        assert found[2:] == [1 + states, size + states * 512]
        graph.replay()
        assert b.sum().item() == 6 * (size // 4)
        torch.cuda.empty_cache()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    found = gained()
    if native():
        assert found[:2] == [1, held_after]
    else:
        assert size <= found[1] <= held_after
    assert found[2:] == [1, size]
    assert b.sum().item() == 6 * (size // 4)
