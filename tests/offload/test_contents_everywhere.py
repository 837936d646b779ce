"""What copies, events, host functions, graphs and peers do to bytes.

Nothing here is peculiar to oomph or to the simulation: each test holds for each
allocator, and would hold on a GPU.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import torch
from support import MIB, Simulated, cuda_runtime, on_each

CARD = "256MiB,context=0,memory=real,devices=2"
ASYNC = "backend:cudaMallocAsync"
WAYS = {
    "oomph": Simulated(CARD, "reserve:0,offload:off"),
    "native": Simulated(CARD, None),
    "expandable": Simulated(CARD, None, PYTORCH_ALLOC_CONF="expandable_segments:True"),
    "async": Simulated(CARD, None, PYTORCH_ALLOC_CONF=ASYNC),
}
everywhere = on_each(WAYS)


def full(value: int, size_bytes: int = MIB) -> torch.Tensor:
    return torch.full((size_bytes,), value, dtype=torch.uint8)


def take(size_bytes: int = MIB, device: int = 0) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")


def fill(tensor: torch.Tensor, value: int) -> None:
    """Sets every byte on the current stream, without a kernel."""
    with torch.cuda.device(tensor.device):
        place, size = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert cuda_runtime().cudaMemsetAsync(place, value, size, stream) == 0


def holds(tensor: torch.Tensor, value: int) -> bool:
    return torch.equal(tensor.cpu(), full(value, tensor.numel()))


# ---- several devices


@everywhere
def test_a_copy_to_the_peer_comes_after_what_was_written_before_it():
    a, b = take(20 * MIB), take(20 * MIB, 1)
    for value in (1, 2, 3):
        a.copy_(full(value, 20 * MIB).pin_memory(), non_blocking=True)
        b.copy_(a, non_blocking=True)
        fill(a, 0)
        assert holds(b, value)
        assert holds(a, 0)


@everywhere
def test_a_peer_reads_back_what_it_was_given():
    a = full(5, 8 * MIB + 1000).cuda(0)
    b = a.cuda(1)
    del a
    c = take(8 * MIB + 1000)  # perhaps where `a` was
    c.copy_(b)
    assert holds(c, 5)


@everywhere
def test_devices_know_each_other_as_peers():
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.cuda.can_device_access_peer(1, 0)


# ---- host functions


@everywhere
def test_a_host_function_runs_when_the_stream_has_come_so_far():
    seen = []
    source, target = full(9).pin_memory(), full(0).pin_memory()
    a = take()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    look = kind(lambda _: seen.append(int(target[0])))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a.copy_(source, non_blocking=True)
        target.copy_(a, non_blocking=True)
        handle = ctypes.c_void_p(stream.cuda_stream)
        assert cuda_runtime().cudaLaunchHostFunc(handle, look, None) == 0
    stream.synchronize()
    assert seen == [9]


# ---- streams


@everywhere
def test_memory_that_another_stream_still_reads_is_not_given_away():
    side = torch.cuda.Stream()
    a = full(4, 8 * MIB).cuda()
    b = take(8 * MIB)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        b.copy_(a, non_blocking=True)
    a.record_stream(side)
    del a
    c = full(5, 8 * MIB).cuda()
    side.synchronize()
    assert holds(b, 4)
    assert holds(c, 5)


# ---- graphs


@everywhere
def test_a_replay_copies_what_is_there_then():
    x, y = full(1).cuda(), full(0).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passing = take()
        passing.copy_(x)
        y.copy_(passing)
        del passing
    assert holds(y, 0)
    for value in (2, 3):
        x.copy_(full(value))
        graph.replay()
        assert holds(y, value)


@everywhere
def test_a_replay_sets_memory_each_time():
    x = full(1).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill(x, 0)
    assert holds(x, 1)
    for _ in range(2):
        x.copy_(full(6))
        graph.replay()
        assert holds(x, 0)


@everywhere
def test_a_replay_reads_and_writes_pinned_memory_as_it_is_then():
    source, target = full(1).pin_memory(), full(0).pin_memory()
    x = take()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(source, non_blocking=True)
        target.copy_(x, non_blocking=True)
    for value in (4, 5):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(target, full(value))


@everywhere
def test_a_result_of_a_graph_keeps_its_bytes_between_replays():
    x = full(3).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = take()
        result.copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    others = [full(value, 4 * MIB).cuda() for value in range(10)]
    assert holds(result, 3)
    assert all(holds(other, value) for value, other in enumerate(others))
    graph.replay()
    torch.cuda.synchronize()
    assert holds(result, 3)
    del result


@everywhere
def test_graphs_of_one_pool_work_in_the_order_of_their_capture():
    x, y = full(1).cuda(), full(0).cuda()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = take()
        middle.copy_(x)
    with torch.cuda.graph(second, pool=first.pool()):
        take().copy_(middle)
        y.copy_(middle)
    for value in (7, 8):
        x.copy_(full(value))
        first.replay()
        second.replay()
        assert holds(y, value)
    del middle


@everywhere
def test_a_graph_that_is_kept_is_instantiated_again():
    x, y = full(1).cuda(), full(0).cuda()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y.copy_(x)
    for value in (2, 3):
        graph.instantiate()
        x.copy_(full(value))
        graph.replay()
        assert holds(y, value)


@everywhere
def test_a_graph_is_written_down_for_people():
    x, y = full(1).cuda(), full(0).cuda()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    with torch.cuda.graph(graph):
        y.copy_(x)
        fill(x, 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        graph.debug_dump(str(path))
        text = path.read_text()
    assert text.startswith("digraph")
    assert "MEMCPY" in text and "MEMSET" in text
    assert "->" in text
