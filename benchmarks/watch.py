"""What oomph copied in a step, and when, by events around each copy.

Copies are seen where all of them pass, in the core; the device's own clock tells the
times, so that on a simulated card they are computed and on a GPU measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from oomph import _C
from torch import nn

OUT, IN = "out", "in"


def event(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    """An event on the stream, or on the current one."""
    made = torch.cuda.Event(enable_timing=True)
    made.record(stream or torch.cuda.current_stream())
    return made


@dataclass(frozen=True)
class Copy:
    """One copy, in milliseconds since the step began.

    Attributes:
        way: ``out`` to the host, ``in`` to the device.
        ready_ms: When the step had come to where the copy was asked for: what is sent
            had been computed, or the memory of what is fetched was free.
    """

    way: str
    bytes: int
    ready_ms: float
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class _Seen:
    way: str
    bytes: int
    events: tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]


class Copies:
    """Sees the copies of a step, and the most bytes that lay on the host in it."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []
        self.host_bytes = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Within it copies are seen."""
        copy, usage = _C.copy, _C.usage
        self._seen.clear()
        self.host_bytes = 0

        def seen(device: int, to: int, source: int, size_bytes: int, on: int) -> None:
            stream = torch.cuda.ExternalStream(on, device=device)
            ready, start = event(), event(stream)
            copy(device, to, source, size_bytes, on)
            way = IN if _is_on_device(to) else OUT
            self._seen.append(_Seen(way, size_bytes, (ready, start, event(stream))))

        def noted(device: int) -> tuple[int, ...]:
            found = usage(device)
            host_bytes = found[3] + int(_C.stats(device)["buffer_bytes"])
            self.host_bytes = max(self.host_bytes, host_bytes)
            return found

        _C.copy, _C.usage = seen, noted
        try:
            yield
        finally:
            _C.copy, _C.usage = copy, usage

    def since(self, start: torch.cuda.Event) -> list[Copy]:
        """The copies, once the device has done them."""
        return [
            Copy(seen.way, seen.bytes, *map(start.elapsed_time, seen.events))
            for seen in self._seen
        ]


def _is_on_device(address: int) -> bool:
    try:
        return _C.place(address)[0] != _C.TIER_HOST
    except ValueError:  # a buffer on the host, which is no block
        return False


@dataclass(frozen=True)
class Idle:
    """How long the link did nothing, in milliseconds.

    Attributes:
        between_ms: From the start of the first copy to the end of the last.
        idle_ms: Of these, without a copy.
        waiting_ms: Of these, while a copy was ready.
    """

    between_ms: float = 0.0
    idle_ms: float = 0.0
    waiting_ms: float = 0.0


def idle(copies: list[Copy], ways: tuple[str, ...] = (OUT, IN)) -> Idle:
    """How long the link was idle between the copies of one way, or of both.

    Both ways together are idle while neither copies: where pieces go round, the slower
    way holds up the other by design.
    """
    ordered = sorted((c for c in copies if c.way in ways), key=lambda c: c.start_ms)
    if not ordered:
        return Idle()
    idle_ms = waiting_ms = 0.0
    end = first = ordered[0].start_ms
    for i, copy in enumerate(ordered):
        gap = max(copy.start_ms - end, 0.0)
        ready = min(later.ready_ms for later in ordered[i:])
        idle_ms += gap
        waiting_ms += min(max(copy.start_ms - ready, 0.0), gap)
        end = max(end, copy.end_ms)
    return Idle(end - first, idle_ms, waiting_ms)


class Blocks:
    """When forward and backward came to each of a model's blocks, for a picture."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        for i, block in enumerate(blocks):
            block.register_forward_pre_hook(self._note(f"forward {i}"))
            block.register_forward_hook(self._watch_backward(f"backward {i}"))
        blocks[-1].register_forward_hook(self._note("forward head"))

    def _note(self, name: str) -> Callable[..., None]:
        def note(*_: object) -> None:
            self._marks.append((name, event()))

        return note

    def _watch_backward(self, name: str) -> Callable[..., None]:
        def watch(module: object, inputs: object, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(self._note(name))

        return watch

    def since(self, start: torch.cuda.Event) -> list[tuple[str, float]]:
        """Names and times of the marks since they were last asked for."""
        marks, self._marks = self._marks, []
        return [(name, start.elapsed_time(mark)) for name, mark in marks]
