"""Streams and events of two devices: after PyTorch's test_cuda_multigpu.py."""

from __future__ import annotations

import ctypes
import queue
import threading
from typing import Any

import pytest
import torch
from both import TWO, both, keep_busy

on_two = both(on=TWO)
Event, Stream = torch.cuda.Event, torch.cuda.Stream


@pytest.mark.parametrize("kind", ["current_stream", "default_stream"])
@on_two
def test_current_stream(kind):
    """Also test_default_stream."""
    stream_of = getattr(torch.cuda, kind)
    assert stream_of() == stream_of(0) == stream_of(torch.device("cuda:0"))
    with torch.cuda.device(1):
        assert stream_of() == stream_of(1) != stream_of(0)
        assert stream_of().device == torch.device("cuda:1")
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        stream_of(torch.device("cpu"))


@on_two
def test_stream_event_device():
    event = Event()
    assert event.device is None
    torch.cuda.current_stream().record_event(event)
    with torch.cuda.device(1):
        stream = Stream()
        other = stream.record_event()
    assert event.device == torch.device("cuda:0")
    assert stream.device == other.device == torch.device("cuda:1")


@on_two
def test_stream_context():
    streams = [torch.cuda.current_stream(), Stream(device=1), Stream(device=0)]
    with torch.cuda.device(1):
        before = torch.cuda.current_stream()

    def check(which: int) -> None:
        assert torch.cuda.current_stream() == streams[which]
        assert torch.cuda.current_device() == streams[which].device.index

    with torch.cuda.stream(streams[1]):
        check(1)
        with torch.cuda.stream(streams[2]):
            check(2)
            with torch.cuda.stream(streams[0]):
                check(0)
            check(2)
        check(1)
    check(0)
    with torch.cuda.device(1):
        assert torch.cuda.current_stream() == before


@on_two
def test_streams_multi_gpu():
    assert torch.cuda.current_stream().device == torch.device("cuda:0")
    assert Stream(device=1).device == torch.device("cuda:1")
    default = torch.cuda.current_stream()
    with torch.cuda.device(1):
        assert torch.cuda.current_stream() != default


@on_two
def test_streams_multi_gpu_eq():
    first, second = (torch.cuda.current_stream(device) for device in (0, 0))
    other = torch.cuda.current_stream(1)
    assert first == second != other
    assert hash(first) == hash(second) != hash(other)
    assert first.cuda_stream == second.cuda_stream


@on_two
def test_streams_priority():
    for device, priority in enumerate(Stream.priority_range()):
        stream = Stream(device=device, priority=priority)
        assert (stream.priority, stream.device.index) == (priority, device)


def check_queries(asked: list[Any]) -> None:
    """The second is done once it is waited for, on whichever device one asks."""
    for done in (False, True):
        for device in (0, 1):
            with torch.cuda.device(device):
                assert [one.query() for one in asked] == [True, done]
        with torch.cuda.device(0):
            asked[1].synchronize()


@on_two
def test_streams_multi_gpu_query():
    streams = [torch.cuda.current_stream(device) for device in (0, 1)]
    with torch.cuda.device(1):
        keep_busy()
    check_queries(streams)


@on_two
def test_events_multi_gpu_query():
    first = torch.cuda.current_stream().record_event()
    torch.cuda.synchronize()
    with torch.cuda.device(1):
        keep_busy()
        second = torch.cuda.current_stream().record_event()
    check_queries([first, second])


@on_two
def test_events_wait():
    streams = [torch.cuda.current_stream(device) for device in (0, 1)]
    keep_busy()
    event = streams[0].record_event()
    assert [stream.query() for stream in streams] == [False, True]
    streams[1].wait_event(event)
    streams[1].synchronize()
    assert event.query()
    assert [stream.query() for stream in streams] == [True, True]


@on_two
def test_events_multi_gpu_elapsed_time():
    events = [Event(enable_timing=True) for _ in range(3)]
    for event, device in zip(events, (0, 1, 0), strict=True):
        with torch.cuda.device(device):
            torch.cuda._sleep(1000)
            torch.cuda.current_stream().record_event(event)
            event.synchronize()
    for device in (0, 1):
        with torch.cuda.device(device):
            with pytest.raises(RuntimeError):
                events[0].elapsed_time(events[1])
            assert events[0].elapsed_time(events[2]) > 0


def by_stream(stream: Stream, end: Event) -> None:
    stream.synchronize()


def by_event(stream: Stream, end: Event) -> None:
    end.synchronize()


def by_another_stream(stream: Stream, end: Event) -> None:
    other = Stream()
    end.wait(other)
    other.synchronize()


@on_two
def test_stream_event_nogil():
    """Who waits lets other threads go on; PyTorch's measures it, this one needs it."""
    for wait in (by_stream, by_event, by_another_stream):
        turns: queue.Queue[int] = queue.Queue()

        def work(device: int, wait: Any = wait, turns: Any = turns) -> None:
            with torch.cuda.device(device):
                begin, end = (Event(enable_timing=True) for _ in range(2))
                stream = torch.cuda.current_stream()
                begin.record(stream)
                torch.cuda._sleep(100_000)
                end.record(stream)
                wait(stream, end)
                assert stream.query()
                assert begin.elapsed_time(end) > 0
            turns.put(device)

        threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert {turns.get(timeout=1), turns.get(timeout=1)} == {0, 1}


@pytest.mark.parametrize("device", [0, 1])
@on_two
def test_external_streams(device):
    """Also test_external_streams_multi_device: a stream that PyTorch did not make."""
    cudart, handle = torch.cuda.cudart(), ctypes.c_uint64(0)
    with torch.cuda.device(device):
        assert cudart.cudaStreamCreate(ctypes.addressof(handle)) == 0
        made = (
            torch.cuda.ExternalStream(handle.value, device=device),
            torch.cuda.get_stream_from_external(handle.value, device),
        )
        for stream in made:
            assert (stream.cuda_stream, stream.device.index) == (handle.value, device)
        with torch.cuda.stream(made[0]):
            assert bool((torch.ones(1000, device=f"cuda:{device}") == 1).all())
        made[0].synchronize()
        assert cudart.cudaStreamDestroy(handle.value) == 0


# ---- copies and backward passes between devices


def check_copies_wait(x: torch.Tensor, y: torch.Tensor) -> None:
    """A copy waits for the current streams of both devices."""
    more = x + 1
    torch.cuda.synchronize(x.device)
    of_x, of_y = Stream(device=x.device), Stream(device=y.device)
    others = Stream(device=x.device), Stream(device=y.device)
    for busy, idle, last in ((of_x, of_y, others[0]), (of_y, of_x, others[1])):
        with torch.cuda.stream(busy):
            keep_busy()
            with torch.cuda.stream(idle):
                y.copy_(more)
        with torch.cuda.stream(last), torch.cuda.stream(idle):
            y.copy_(x)
        idle.synchronize()
        assert torch.equal(y.cpu(), x.cpu())
        for device in (0, 1):
            torch.cuda.synchronize(device)


@on_two
def test_copy_streams():
    x = torch.zeros(5, 5, device="cuda:0")
    check_copies_wait(x, torch.zeros(5, 5, device="cuda:1"))


@on_two
def test_caching_pinned_memory_multi_gpu():
    values = torch.tensor([1.0]).pin_memory()
    address = values.data_ptr()
    targets = [torch.zeros(1, device=f"cuda:{device}") for device in (0, 1)]
    with torch.cuda.device(1):
        keep_busy()
        targets[1].copy_(values, non_blocking=True)
    del values
    values = torch.tensor([2.0]).pin_memory()
    assert values.data_ptr() != address
    targets[0].copy_(values, non_blocking=True)
    assert [target.item() for target in targets] == [2, 1]


@on_two
def test_streaming_backwards_device_transfer():
    size = 1 << 16
    a, b = (
        torch.ones(size, device="cuda:1", dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    for times in (1, 2):
        a.grad = b.grad = None
        product = a * b
        sums = [product.to("cuda:0").sum() * times for _ in range(times)]
        for device in (0, 1):
            torch.cuda.synchronize(device)
        for left, total in zip(range(times, 0, -1), sums, strict=True):
            total.backward(retain_graph=left > 1)
        wanted = size * times * times
        assert (a.grad.sum().item(), b.grad.sum().item()) == (wanted, wanted)
