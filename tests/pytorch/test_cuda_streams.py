"""Streams, events and blocks that several streams use: after PyTorch's test_cuda.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from both import both, differs, keep_busy, native


@both
def test_streams():
    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    assert torch.cuda.current_stream() == default != side
    assert default.cuda_stream == 0 != side.cuda_stream
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
    assert side.query()
    torch.ByteTensor(5).pin_memory()
    default.synchronize()
    assert default.query()


@both
def test_stream_event_repr():
    stream, event = torch.cuda.current_stream(), torch.cuda.Event()
    assert "torch.cuda.Stream" in repr(stream)
    assert "torch.cuda.Event" in repr(event)
    stream.record_event(event)
    assert "torch.cuda.Event" in repr(event)


@both
def test_cuda_stream_protocol():
    stream = torch.cuda.Stream()
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    outside = torch.cuda.ExternalStream(stream.cuda_stream)
    assert outside.__cuda_stream__() == (0, stream.cuda_stream)


@both
def test_events():
    stream = torch.cuda.current_stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert end.query()
    assert end.cuda_event == 0
    stream.record_event(begin)
    keep_busy()
    stream.record_event(end)
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    assert end.cuda_event != 0


@both
def test_events_elapsedtime():
    plain = [torch.cuda.Event() for _ in range(2)]
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain[0].elapsed_time(plain[1])
    timed = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with pytest.raises(ValueError, match="must be recorded before"):
        timed[0].elapsed_time(timed[1])


@both
def test_generic_stream_event():
    stream = torch.Stream("cuda")
    assert stream.device_index == torch.cuda.current_device()
    same = torch.cuda.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert isinstance(same, torch.Stream)
    assert same.stream_id == stream.stream_id
    assert stream.stream_id != torch.cuda.current_stream().stream_id
    first, second = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    a, b = torch.randn(1000), torch.randn(1000)
    with torch.cuda.stream(same):
        assert torch.cuda.current_stream().stream_id == stream.stream_id
        on_a, on_b = a.to("cuda", non_blocking=True), b.to("cuda", non_blocking=True)
    first.record(stream)
    first.synchronize()
    assert first.query()
    total = on_a + on_b
    second.record()
    second.synchronize()
    assert first.event_id != second.event_id
    assert torch.equal(total.cpu(), a + b)
    assert first.elapsed_time(second) > 0
    assert isinstance(torch.cuda.Event(), torch.Event)


@both
def test_stream_compatibility():
    before = torch.cuda.current_stream()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        torch.accelerator.set_stream(stream)
        assert torch.accelerator.current_stream().stream_id == stream.stream_id
    torch.cuda.set_stream(before)
    with pytest.raises(RuntimeError, match="out of index range"):
        torch.accelerator.current_stream(torch.accelerator.device_count())


@both
def test_device_context_manager():
    before = torch.cuda.current_device()
    for index in (None, 0):
        with torch.accelerator.device_index(index):
            assert torch.cuda.current_device() == (before if index is None else 0)
        assert torch.cuda.current_device() == before


@both
def test_stream_context_manager():
    before = torch.cuda.current_stream()
    with torch.cuda.Stream() as stream:
        assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_stream() == before


# ---- a block that another stream uses is not given away too soon


@both
def test_record_stream():
    values = torch.tensor([1.0, 2, 3, 4]).pin_memory()
    result, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        sent = values.cuda(non_blocking=True)
    address = sent.data_ptr()
    current = torch.cuda.current_stream()
    current.wait_stream(side)
    sent.record_stream(current)
    keep_busy()
    result.copy_(sent)
    del sent
    with torch.cuda.stream(side):
        too_soon = torch.empty(4, device="cuda")
        too_soon.zero_()
    assert too_soon.data_ptr() != address
    assert result.tolist() == [1, 2, 3, 4]
    current.synchronize()
    with torch.cuda.stream(side):
        tries = 8 if differs("test_record_stream") else 1
        found = [torch.empty(4, device="cuda").data_ptr() for _ in range(tries)]
    assert address in found


@both
def test_record_stream_on_shifted_view():
    """The view's pointer is not the block's, and yet the block is meant."""
    owner, user = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(owner):
        base = torch.empty(10, 10, device="cuda")
    view = base[5:]
    assert view.storage_offset() > 0
    with torch.cuda.stream(user):
        keep_busy()
    view.record_stream(user)
    address = base.data_ptr()
    del base, view
    owner.synchronize()
    with torch.cuda.stream(owner):
        assert torch.empty(10, 10, device="cuda").data_ptr() != address
    torch.cuda.synchronize()


@both
def test_caching_allocator_record_stream_oom():
    """What only waits for another stream is no reason to be out of memory."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        total = torch.zeros(10 << 20, device="cuda")
    for _ in range(100):
        block = torch.empty(10 << 20, device="cuda")
        with torch.cuda.stream(side):
            total += block
        block.record_stream(side)
        del block
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == total.nbytes
    assert native() or torch.cuda.memory_reserved() == total.nbytes


# ---- backward passes over several streams


class MultiplyInStream(torch.autograd.Function):
    """Multiplies; its backward must run on the stream of its forward, and late."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: int) -> torch.Tensor:
        ctx.factor, ctx.stream = factor, torch.cuda.current_stream()
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        assert torch.cuda.current_stream() == ctx.stream
        keep_busy()
        return grad * ctx.factor, None


def square(**options: Any) -> torch.Tensor:
    return torch.randn(5, 5, device="cuda", requires_grad=True, **options)


@both
def test_streaming_backwards_sync():
    default, side, ambient = (
        torch.cuda.current_stream(),
        torch.cuda.Stream(),
        torch.cuda.Stream(),
    )
    x = square()
    with torch.cuda.stream(side):
        side.wait_stream(default)
        MultiplyInStream.apply(x, 2).sum().backward()
    default.wait_stream(side)
    assert torch.equal(x.grad, torch.ones_like(x) * 2)
    assert torch.cuda.current_stream() == default
    x = square()
    with torch.cuda.stream(side):
        side.wait_stream(default)
        output = MultiplyInStream.apply(x, 3)
    with torch.cuda.stream(ambient):
        ambient.wait_stream(side)
        output.sum().backward()  # and waits for the streams of the leaves at its end
        assert torch.equal(x.grad, torch.ones_like(x) * 3)
        assert torch.cuda.current_stream() == ambient
    torch.cuda.synchronize()


class StreamModel(torch.nn.Module):
    """Two branches on two streams, joined on the second."""

    def __init__(self, first_on_ambient: bool) -> None:
        super().__init__()
        self.first_on_ambient = first_on_ambient
        self.event = torch.cuda.Event()
        self.left, self.right = torch.cuda.Stream(), torch.cuda.Stream()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copy = x.clone() if self.first_on_ambient else None
        self.left.wait_stream(torch.cuda.current_stream())
        self.right.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.left):
            copy = x.clone() if copy is None else copy
            doubled = MultiplyInStream.apply(copy, 2)
            self.event.record(stream=torch.cuda.current_stream())
        with torch.cuda.stream(self.right):
            tripled = MultiplyInStream.apply(x, 3)
            self.right.wait_event(self.event)
            total = doubled + tripled
        torch.cuda.current_stream().wait_stream(self.right)
        return total


@pytest.mark.parametrize("first_on_ambient", [True, False])
@pytest.mark.parametrize("in_place, steps", [(False, 1), (True, 1), (True, 5)])
@both
def test_streaming_backwards_multiple_streams(first_on_ambient, in_place, steps):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, model = square(), StreamModel(first_on_ambient)
        for _ in range(steps):
            loss = model(x).sum()
            if in_place:
                loss.backward()
            else:
                (x.grad,) = torch.autograd.grad((loss,), (x,))
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(x.grad, torch.ones_like(x) * 5 * steps)
    torch.cuda.synchronize()


@both
def test_streaming_backwards_sync_graph_root():
    """Backward waits for the stream that fills the gradient it starts from."""
    forward, ambient = torch.cuda.Stream(), torch.cuda.Stream()
    assert forward != ambient
    a, b = (
        torch.full((1000,), value, device="cuda", requires_grad=True)
        for value in (2.0, 3.0)
    )
    for trial in range(5):
        torch.cuda.synchronize()
        a.grad = b.grad = None
        with torch.cuda.stream(forward):
            c = a * b
        with torch.cuda.stream(ambient):
            torch.cuda.synchronize()
            keep_busy()
            grad = torch.full((1000,), float(trial + 1), device="cuda")
            torch.autograd.backward(tensors=c, grad_tensors=grad)
            torch.cuda.synchronize()
            assert torch.equal(a.grad, (grad * b).detach())
            assert torch.equal(b.grad, (grad * a).detach())


@both
def test_streaming_backwards_callback():
    """What autograd calls at its end sees the gradients of all streams."""
    a, b = (torch.ones(1000, device="cuda", requires_grad=True) for _ in range(2))
    streams = [torch.cuda.Stream() for _ in range(3)]
    seen: list[torch.Tensor] = []
    streams[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(streams[0]):
        c = MultiplyInStream.apply(a, 2)
    streams[1].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(streams[1]):
        d = MultiplyInStream.apply(b, 3)
        streams[1].wait_stream(streams[0])
        e = c * d

    def see() -> None:
        seen.extend((a.grad.clone(), b.grad.clone()))

    engine = torch.autograd.Variable._execution_engine
    e.register_hook(lambda grad: engine.queue_callback(see))
    streams[2].wait_stream(streams[1])
    with torch.cuda.stream(streams[2]):
        e.sum().backward()
        assert all(torch.equal(grad, torch.full_like(a, 6)) for grad in seen)
    torch.cuda.synchronize()


# ---- threads that each have a stream, and libraries with handles of their own


def in_two_threads(work: Callable[[int], None]) -> None:
    """Runs it in two threads at once, each on a stream of its own."""
    barrier = threading.Barrier(2)

    def on_a_stream(which: int) -> None:
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        barrier.wait()
        with torch.cuda.stream(stream):
            work(which)
        torch.cuda.synchronize()

    threads = [threading.Thread(target=on_a_stream, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@both
def test_cublas_multiple_threads_same_device():
    size = 64
    weight = torch.ones(size, size, device="cuda")
    results = [torch.ones(size, size, device="cuda") for _ in range(2)]

    def work(which: int) -> None:
        for _ in range(50):
            results[which] = torch.mm(results[which], weight)
            results[which].div_(float(size))

    in_two_threads(work)
    assert [result.sum().item() for result in results] == [size * size] * 2


@both
def test_cudnn_multiple_threads_same_device():
    size, count = 64, 40
    weight = torch.ones(1, 1, 2, 2, device="cuda")
    results = [torch.ones(1, 1, size, size, device="cuda") for _ in range(2)]

    def work(which: int) -> None:
        for _ in range(count):
            results[which] = torch.nn.functional.conv2d(results[which], weight)
            results[which].div_(4.0)

    in_two_threads(work)
    assert [result.sum().item() for result in results] == [(size - count) ** 2] * 2
