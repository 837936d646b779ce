"""How long steps take, with and without anything on the host.

A step's time is the device's own: between the events that end it and the one before, on
the stream that is current there. Nothing here waits for the device.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from oomph import _C


def has_passed(event: Any) -> bool:
    """Whether the device has reached an event.

    One that has failed reaches none; the program learns of that from its own calls,
    and what is known so far can still be reported. While a stream captures none is
    reached: CUDA forbids to ask for them, and for the times between them.

    Args:
        event: A ``torch.cuda.Event`` that was recorded.
    """
    try:
        return _C.event_passed(event.device.index, event.cuda_event)
    except (_C.DriverError, MemoryError):
        return False


def mark(device: int | None = None) -> Any:
    """A ``torch.cuda.Event`` on the current stream, for times.

    Args:
        device: Of which device; ``None``: the current one.
    """
    import torch

    event: Any = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class StepTimes:
    """The times of a device's steps, in milliseconds; 0 where none is known."""

    def __init__(self) -> None:
        self.last_ms = 0.0
        self.last_without_ms = 0.0  # of the last step that had nothing on the host
        self._previous: Any = None  # the event at the end of a step
        self._ended: deque[tuple[Any, bool]] = deque()
        self._lock = threading.Lock()  # steps may end in any thread

    def end_step(self, event: Any, offloaded: bool) -> None:
        """A step has ended at this recorded event; whether it used the host."""
        self._ended.append((event, offloaded))
        self.collect()

    def collect(self) -> None:
        """Learns the times of the steps that the device has finished."""
        with self._lock:
            while self._ended and has_passed(self._ended[0][0]):
                event, offloaded = self._ended.popleft()
                if self._previous is not None:
                    self.last_ms = self._previous.elapsed_time(event)
                    if not offloaded:
                        self.last_without_ms = self.last_ms
                self._previous = event


_times: dict[int, StepTimes] = {}


def of_device(device: int) -> StepTimes:
    """The times of a device's steps so far."""
    times = _times.setdefault(device, StepTimes())
    times.collect()
    return times


def end_step(offloading: set[int]) -> None:
    """Notes the end of a step on the current device.

    Args:
        offloading: The devices that had something on the host in it.
    """
    import torch

    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return
    device = torch.cuda.current_device()
    of_device(device).end_step(mark(), device in offloading)
