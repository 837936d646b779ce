"""Page-locked host memory and copies from and to it: after PyTorch's test_cuda.py."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from both import both, keep_busy
from support import MIB

set_pinned = torch._C._accelerator_setAllocatorSettings


@contextlib.contextmanager
def registered(wanted: bool = True) -> Iterator[None]:
    """Host memory is registered with CUDA rather than allocated by it."""
    if wanted:
        set_pinned("pinned_use_cuda_host_register:True,pinned_num_register_threads:8")
    try:
        yield
    finally:
        if wanted:
            set_pinned("pinned_use_cuda_host_register:False")


@contextlib.contextmanager
def in_background(wanted: bool) -> Iterator[None]:
    """Threads of PyTorch's look after what is free again."""
    if wanted:
        set_pinned("pinned_use_background_threads:True")
    try:
        yield
    finally:
        if wanted:
            set_pinned("pinned_use_background_threads:False")


def pin_some() -> None:
    assert not torch.ones(20).is_pinned()
    for size in (1 << 18, 1 << 20):
        assert torch.ones(size).pin_memory().is_pinned()


@both
def test_pinned_memory_with_cudaregister():
    with registered():
        pin_some()


@both
def test_pinned_memory_with_cudaregister_multithread():
    with registered():
        threads = [threading.Thread(target=pin_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@both
def test_pinned_memory_empty_cache():
    for wanted in (True, False):
        with registered(wanted):
            assert torch.ones(MIB, pin_memory=True).is_pinned()
            torch._C._host_emptyCache()


@both
def test_host_memory_stats():
    gc.collect()
    torch._C._host_emptyCache()
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    count = size = 0
    before = torch.cuda.host_memory_stats()

    def check() -> None:
        now = torch.cuda.host_memory_stats()
        found = {key: now[key] - before[key] for key in now}
        assert found["num_host_alloc"] == found["host_alloc_time.count"] == count
        for suffix in ("allocated", "current", "peak"):
            assert found[f"active_requests.{suffix}"] == count
            assert found[f"allocations.{suffix}"] == count
            assert found[f"allocated_bytes.{suffix}"] == size
            assert found[f"active_bytes.{suffix}"] == size
        for key in ("allocations", "active_requests", "allocated_bytes"):
            assert found[f"{key}.freed"] == 0

    check()
    kept = []
    for kib, rounded_kib in ((40, 64), (80, 128)):
        kept.append(torch.ones(kib * 256, pin_memory=True))
        count, size = count + 1, size + rounded_kib * 1024
        check()
    torch._C._host_emptyCache()
    check()
    kept.clear()
    torch._C._host_emptyCache()
    now = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    assert now == before["allocated_bytes.current"]


@both
def test_cudart_register():
    tensor = torch.ones(20)
    cudart = torch.cuda.cudart()
    assert not tensor.is_pinned()
    assert cudart.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0) == 0
    assert tensor.is_pinned()
    assert cudart.cudaHostUnregister(tensor.data_ptr()) == 0
    assert not tensor.is_pinned()


@both
def test_noncontiguous_pinned_memory():
    x = torch.arange(10).view(2, 5)
    assert torch.equal(x.t(), x.t().pin_memory())


@both
def test_caching_pinned_memory():
    tensor = torch.tensor([1.0]).pin_memory()
    address = tensor.data_ptr()
    del tensor
    tensor = torch.tensor([1.0]).pin_memory()
    assert tensor.data_ptr() == address
    target = torch.zeros(1, device="cuda")
    keep_busy()
    target.copy_(tensor, non_blocking=True)
    del tensor
    tensor = torch.tensor([1.0]).pin_memory()
    assert tensor.data_ptr() != address  # the copy still reads it
    assert target.tolist() == [1]


# ---- copies


@both
def test_copy_non_blocking():
    size = 1 << 20
    whole = torch.zeros(size, dtype=torch.uint8).pin_memory()
    shifted = whole[1:]  # its pointer is not its storage's
    assert shifted.is_pinned()
    pairs = [
        (torch.ones(size, dtype=torch.uint8).cuda(), whole),
        (torch.zeros_like(whole).pin_memory(), torch.ones_like(whole).cuda()),
        (shifted, torch.ones(size - 1, dtype=torch.uint8).cuda()),
    ]
    for target, source in pairs:
        event = torch.cuda.Event()
        target.copy_(source, non_blocking=True)
        event.record()
        event.synchronize()
        assert torch.equal(target.cpu(), source.cpu())


@both
def test_copy_non_blocking_type_conversion():
    source = torch.ones(1, device="cuda")
    between = torch.zeros(1, pin_memory=True)
    target = torch.empty(1, device="cuda", dtype=torch.long)
    keep_busy()
    between.copy_(source, non_blocking=True)
    target.copy_(between, non_blocking=True)
    assert target.item() == 1


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("target", ["cuda", "cpu"])
@both
def test_to_non_blocking(target, non_blocking):
    to_card = target == "cuda"
    source = torch.randn(100_000, pin_memory=to_card)
    source = source if to_card else source.cuda()
    torch.cuda.synchronize()
    keep_busy()
    copy = source.to(device=target, non_blocking=non_blocking)
    stream = torch.cuda.current_stream()
    assert stream.query() is not non_blocking
    stream.synchronize()
    assert torch.equal(copy.cpu(), source.cpu())
    assert copy.is_pinned() == (non_blocking and not to_card)


@both
def test_to_cpu_blocking_by_default():
    source = torch.randn(100_000, device="cuda")
    torch.cuda.synchronize()
    keep_busy()
    copy = source.to(device="cpu")
    assert torch.cuda.current_stream().query()
    assert torch.equal(source.cpu(), copy)
    assert not copy.is_pinned()


# ---- host memory that a graph's pool owns


def captured(graph: torch.cuda.CUDAGraph, pool: tuple[int, int] | None = None):
    return torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")


@pytest.mark.parametrize("by_register", [True, False])
@both
def test_pin_memory_no_use(by_register):
    """What is alive is not given out twice."""
    graph = torch.cuda.CUDAGraph()
    with registered(by_register), captured(graph):
        first = torch.empty(8, pin_memory=True)
        second = torch.empty(8, pin_memory=True)
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("by_register", [True, False])
@both
def test_pin_memory_no_use2(by_register):
    """What died without being used serves again."""
    graph = torch.cuda.CUDAGraph()
    with registered(by_register), captured(graph):
        first = torch.zeros(8).pin_memory()
        address = first.data_ptr()
        del first
        assert torch.zeros(8).pin_memory().data_ptr() == address


@pytest.mark.parametrize("by_register", [True, False])
@both
def test_pin_memory_use(by_register):
    """What a captured copy reads is the graph's for ever."""
    graph = torch.cuda.CUDAGraph()
    with registered(by_register), captured(graph):
        first = torch.zeros(8).pin_memory()
        torch.zeros(8, device="cuda").copy_(first, non_blocking=True)
        address = first.data_ptr()
        del first
        second = torch.zeros(8).pin_memory()
    assert second.data_ptr() != address


@pytest.mark.parametrize("by_register", [True, False])
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("use", [True, False])
@pytest.mark.parametrize("delete", [True, False])
@both
def test_two_graphs(by_register, background, use, delete):
    """The pool owns it, not the graph."""
    with in_background(background), registered(by_register):
        pool = torch.cuda.graph_pool_handle()
        graphs, kept, addresses = [], [], []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with captured(graph, pool):
                data = torch.zeros(8).pin_memory()
                if use:
                    target = torch.zeros(8, device="cuda")
                    target.copy_(data, non_blocking=True)
                addresses.append(data.data_ptr())
                if not delete:
                    kept.append(data)
                del data
            graphs.append(graph)
        same = addresses[0] == addresses[1]
        assert same == (delete and not use)


def capture_a_copy(to_host: bool) -> None:
    pair = [torch.empty(8), torch.zeros(8, device="cuda")]
    if not to_host:
        pair.reverse()
    message = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
    with (
        pytest.raises(RuntimeError, match=message),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        pair[0].copy_(pair[1], non_blocking=True)


@both
def test_unpinned_memory_use():
    capture_a_copy(to_host=False)


@both
def test_unpinned_memory_use_device_to_host():
    capture_a_copy(to_host=True)
