"""What a tracer of PyTorch's hears: after its test_cuda_trace.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import MagicMock

import torch
from both import both, cards
from torch.cuda import _gpu_trace

traced = both(on=cards())  # the tracing of a process never ends


@contextlib.contextmanager
def heard(kind: str) -> Iterator[MagicMock]:
    """A listener to events of this kind."""
    torch._C._activate_gpu_trace()
    registry = getattr(_gpu_trace, f"{kind}Callbacks")
    listener = MagicMock()
    registry.add_callback(listener)
    try:
        yield listener
    finally:
        registry.callback_list.remove(listener)


def recorded() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


def number(event: torch.cuda.Event) -> int:
    return event._as_parameter_.value


DEFAULT = 0  # the default stream


@traced
def test_event_creation_callback():
    with heard("EventCreation") as listener:
        event = recorded()
    listener.assert_called_once_with(number(event))


@traced
def test_event_deletion_callback():
    with heard("EventDeletion") as listener:
        event = recorded()
        wanted = number(event)
        del event
    listener.assert_called_once_with(wanted)


@traced
def test_event_record_callback():
    with heard("EventRecord") as listener:
        event = recorded()
    listener.assert_called_once_with(number(event), DEFAULT)


@traced
def test_event_wait_callback():
    with heard("EventWait") as listener:
        event = recorded()
        event.wait()
    listener.assert_called_once_with(number(event), DEFAULT)


@traced
def test_memory_allocation_callback():
    with heard("MemoryAllocation") as listener:
        tensor = torch.empty(10, 4, device="cuda")
    listener.assert_called_once_with(tensor.data_ptr())


@traced
def test_memory_deallocation_callback():
    with heard("MemoryDeallocation") as listener:
        tensor = torch.empty(3, 8, device="cuda")
        address = tensor.data_ptr()
        del tensor
    listener.assert_called_once_with(address)


@traced
def test_all_trace_callbacks_called():
    with heard("MemoryAllocation") as first, heard("MemoryAllocation") as second:
        tensor = torch.empty(10, 4, device="cuda")
    for listener in (first, second):
        listener.assert_called_once_with(tensor.data_ptr())


@traced
def test_stream_creation_callback():
    """PyTorch makes its streams when the first of a priority is asked for."""
    with heard("StreamCreation") as listener:
        torch.cuda.Stream(priority=-3)
    listener.assert_called()


@traced
def test_device_synchronization_callback():
    with heard("DeviceSynchronization") as listener:
        torch.cuda.synchronize()
    listener.assert_called()


@traced
def test_stream_synchronization_callback():
    stream = torch.cuda.Stream()
    with heard("StreamSynchronization") as listener:
        stream.synchronize()
    listener.assert_called_once_with(stream.cuda_stream)


@traced
def test_event_synchronization_callback():
    with heard("EventSynchronization") as listener:
        event = recorded()
        event.synchronize()
    listener.assert_called_once_with(number(event))


@traced
def test_memcpy_synchronization():
    tensor = torch.rand(5, device="cuda")
    with heard("StreamSynchronization") as listener:
        tensor.nonzero()
    listener.assert_called_once_with(DEFAULT)
