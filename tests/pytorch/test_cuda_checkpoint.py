"""What trees of graphs save and restore: after PyTorch's TestBlockStateAbsorption."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from both import both, native, pool_segments
from support import MIB

MIN_BLOCK, SMALL, SMALL_BUFFER, LARGE_BUFFER = 512, MIB, 2 * MIB, 20 * MIB
Pool = tuple[int, int]


def ones(size_bytes: int) -> torch.Tensor:
    return torch.ones(size_bytes, device="cuda", dtype=torch.uint8)


def capture(
    body: Callable[..., Any], *inputs: torch.Tensor, pool: Pool | None = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Runs it once before, and captures it; gives the graph and the results."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        return graph, body(*inputs)


def live_blocks(pool: Pool) -> dict[int, int]:
    """Address and size of what lives in the pool."""
    return {
        block["address"]: block["size"]
        for segment in pool_segments(pool)
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def layout(pool: Pool) -> dict[int, tuple]:
    """What PyTorch compares, by segment; for oomph what lives, and where.

    How its free memory is cut into blocks is oomph's own business.
    """
    if not native():
        return {address: (size,) for address, size in live_blocks(pool).items()}
    keys = ("device", "total_size", "allocated_size", "active_size", "segment_type")
    return {
        segment["address"]: (
            *(segment[key] for key in keys),
            *((block["size"], block["state"]) for block in segment["blocks"]),
        )
        for segment in pool_segments(pool)
    }


def restore(state: Any, stale: Any = (), owners: Any = ()) -> None:
    """As the trees do: some storages lose their blocks, others become owners."""
    torch._C._cuda_setCheckpointPoolState(
        0,
        state,
        [tensor.untyped_storage()._cdata for tensor in stale],
        [tensor.untyped_storage()._cdata for tensor in owners],
    )


def check_restored(body: Callable[[], Any]) -> None:
    graph, outputs = capture(body)
    before = layout(graph.pool())
    assert before
    restore(torch._C._cuda_getCheckpointState(0, graph.pool()))
    assert layout(graph.pool()).items() >= before.items()
    # The blocks were given out anew: nobody but us frees them.
    held = [tensor.data_ptr() for tensor in outputs]
    assert sorted(live_blocks(graph.pool())) == sorted(held)


@both
def test_simple():
    def body():
        x = torch.zeros(SMALL * 8, device="cuda", dtype=torch.uint8)
        x = x + x
        y = ones(SMALL) + ones(SMALL) + ones(SMALL)
        return x, ones(SMALL) + y, ones(SMALL)

    check_restored(body)


def small_blocks() -> list[torch.Tensor]:
    return [ones(MIN_BLOCK) for _ in range(11)]


@both
def test_allocated_in_middle_of_segment():
    check_restored(lambda: [small_blocks()[5].add_(2)])


@both
def test_multiple_middle_allocations():
    check_restored(lambda: [small_blocks()[i] for i in (5, 8)])


@both
def test_middle_allocations_contiguous():
    def body():
        blocks = small_blocks()
        return blocks[5], blocks[6]

    check_restored(body)


@both
def test_resnet():
    """A network with convolutions, blocks and a head; PyTorch takes torchvision's."""

    def block(width: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(width, width, 3, padding=1),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(),
        )

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, 2),
        *(block(8) for _ in range(4)),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    )
    model = model.eval().requires_grad_(False).cuda()
    image = torch.rand(1, 3, 63, 63, device="cuda")
    check_restored(lambda: [model(image)])


@both
def test_additional_free_following_checkpoint():
    graph, _first = capture(lambda: (ones(MIN_BLOCK),))
    pool = graph.pool()
    before = layout(pool)
    state = torch._C._cuda_getCheckpointState(0, pool)
    _second, later = capture(lambda: (ones(MIN_BLOCK),), pool=pool)
    assert len(live_blocks(pool)) == 2
    restore(state, stale=later)
    del later
    assert layout(pool).items() >= before.items()
    assert len(live_blocks(pool)) == 1


@both
def test_tensor_dies_after_checkpoint():
    graph, outputs = capture(lambda: (ones(MIN_BLOCK), ones(MIN_BLOCK)))
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    addresses = [output.data_ptr() for output in outputs]
    del outputs
    assert len(live_blocks(graph.pool())) == 0
    restore(state)
    for left in (2, 1):
        assert len(live_blocks(graph.pool())) == left
        torch._C._cuda_cudaCachingAllocator_raw_delete(addresses.pop())
    assert len(live_blocks(graph.pool())) == 0


def seen_anew(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor that owns nothing."""
    storage = torch._C._construct_storage_from_data_pointer(
        tensor.untyped_storage().data_ptr(),
        tensor.device,
        tensor.untyped_storage().nbytes(),
    )
    anew = torch.empty(0, device=tensor.device, dtype=tensor.dtype)
    return anew.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


@both
def test_assigning_back_deleter_fns_to_tensor():
    x = torch.ones(1, device="cuda", dtype=torch.uint8)
    sizes = (SMALL_BUFFER, SMALL_BUFFER, LARGE_BUFFER)
    graph, outputs = capture(lambda x: [ones(size) + x for size in sizes], x)
    pool = graph.pool()

    def check(tensors: list[torch.Tensor], value: int) -> None:
        assert all(t.mean(dtype=torch.float) == value for t in tensors)

    graph.replay()
    check(outputs, 2)
    state = torch._C._cuda_getCheckpointState(0, pool)
    last = outputs[2].data_ptr()
    assert len(live_blocks(pool)) == 3
    anew: list[Any] = [seen_anew(output) for output in outputs]
    del outputs
    assert len(live_blocks(pool)) == 0
    check(anew, 2)
    x.add_(1)
    graph.replay()
    check(anew, 3)
    restore(state, owners=anew[:2])
    for which, left in ((None, 3), (0, 2), (1, 1), (2, 1)):
        if which is not None:
            anew[which] = None
        assert len(live_blocks(pool)) == left
    torch._C._cuda_cudaCachingAllocator_raw_delete(last)
    assert len(live_blocks(pool)) == 0


@both
def test_check_pool_live_allocations():
    pool = torch.cuda.graph_pool_handle()
    _graph, outputs = capture(lambda: [torch.ones(4, device="cuda")], pool=pool)

    def lives(*addresses: int) -> bool:
        return torch._C._cuda_checkPoolLiveAllocations(0, pool, set(addresses))

    address = outputs[0].data_ptr()
    assert lives(address)
    assert not lives(address, 0)
    assert not lives()
    del outputs
    assert lives()


@contextlib.contextmanager
def this_thread_takes_from(pool: Pool) -> Iterator[None]:
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.device("cuda:0"):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(0, pool)
            torch._C._cuda_releasePool(0, pool)
    torch.cuda.current_stream().wait_stream(stream)


@both
def test_allocate_in_thread_to_pool():
    pool = torch.cuda.graph_pool_handle()
    graph, outputs = capture(lambda: [torch.ones(4, device="cuda")], pool=pool)
    del outputs
    (before,) = pool_segments(pool)

    def three() -> None:
        a, b = ones(LARGE_BUFFER), ones(LARGE_BUFFER)
        c = a + b
        assert bool((c.cpu() == 2).all())

    def with_pool() -> None:
        with this_thread_takes_from(pool):
            for _ in range(3):
                three()
        three()

    def without() -> None:
        for _ in range(3):
            ones(LARGE_BUFFER)

    threads = [threading.Thread(target=work) for work in (with_pool, without)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    found = pool_segments(pool)
    if native():
        assert len(found) == 4  # the graph's, and one for each block
    size = sum(segment["total_size"] for segment in found) - before["total_size"]
    assert size >= 3 * LARGE_BUFFER
    assert sum(segment["active_size"] for segment in found) == 0
    del graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert pool_segments(pool) == []
