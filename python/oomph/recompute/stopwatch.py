"""How long the parts of a step take that lie between calls that begin or end.

Events on the device are recorded where a call begins or ends in forward, and where what
backward uses was saved on the other side of such a boundary. The clock of the host
would only measure how long it takes to launch. Waits for copies are taken off. The
device is waited for once, at the end: so only steps that are measured pay for it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from oomph.steps import times

Waits = Iterable[tuple[torch.cuda.Event, torch.cuda.Event]]


@dataclass
class Times:
    """What the parts of a step took, in milliseconds.

    The parts lie between the boundaries: where calls begin and end.

    Attributes:
        forward: Of each part.
        backward: Of each part, less what it waited for copies.
        before: Of the step before these,
        after: and after them.
    """

    forward: list[float]
    backward: list[float]
    before: float
    after: float


class Stopwatch:
    """Records events along a forward and the backward after it; the step begins.

    Args:
        device: Whose time it is.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._start = times.mark(device)
        # Events, and whether the time since the one before counts: what runs for
        # trials alone does not.
        self._forward: list[tuple[torch.cuda.Event, bool]] = []
        self._at: list[int] = []  # the event at each boundary
        self._backward: list[tuple[torch.cuda.Event, float]] = []  # and the place
        self._end: torch.cuda.Event | None = None
        self._last: torch.cuda.Event | None = None

    def mark(self, counts: bool = True) -> None:
        """Forward is here; whether the time since the mark before counts."""
        self._forward.append((times.mark(self.device), counts))

    def bound(self) -> None:
        """Forward is at a boundary."""
        self._at.append(len(self._forward))
        self.mark()

    @property
    def is_in_backward(self) -> bool:
        """Whether backward has begun."""
        return bool(self._backward)

    def is_here(self) -> bool:
        """Whether backward runs on this device.

        Autograd has a thread for each, in which it is the current one.
        """
        return torch.cuda.current_device() == self.device

    def used(self, place: int, bounds: Sequence[int]) -> None:
        """Backward uses what was saved at a place.

        Args:
            place: It.
            bounds: The places of the boundaries, in order.
        """
        if not self._backward:  # it has come from the end
            self._backward.append((times.mark(self.device), math.inf))
        last = bisect.bisect_right(bounds, self._backward[-1][1])
        if bisect.bisect_right(bounds, place) < last:
            self._backward.append((times.mark(self.device), place))

    def finished(self) -> None:
        """Backward is through."""
        if self._end is None and self._backward:
            self._end = times.mark(self.device)

    def stop(self) -> torch.cuda.Event:
        """The step ends, if it has not; gives the event."""
        if self._last is None:
            self._last = times.mark(self.device)
        return self._last

    def has_passed(self) -> bool:
        """Whether the device has come to the end of the step."""
        return self._last is not None and times.has_passed(self._last)

    def step_ms(self) -> float:
        """Time of the step, which has ended on the device."""
        return float(self._start.elapsed_time(self.stop()))

    def measured(
        self, bounds: Sequence[int], which: Sequence[int], waits: Waits
    ) -> Times | None:
        """The times of the step, which has ended. Waits for the device.

        Args:
            bounds: The places of the boundaries that count, in order.
            which: Their indices among all.
            waits: Events before and after each wait for a copy.

        Returns:
            The times; None: no forward was seen, or no backward.
        """
        if not self._forward or not self._backward:
            return None
        last = self.stop()
        last.synchronize()
        marks = [*self._forward, (self._backward[0][0], True)]
        passed, at = 0.0, [0.0]
        for (before, _), (event, counts) in pairwise(marks):
            passed += before.elapsed_time(event) if counts else 0.0
            at.append(passed)
        ends = [*(at[self._at[i]] for i in which), passed]
        forward = [b - a for a, b in pairwise([0.0, *ends])]
        end = self._end or last
        backward = self._backward_ms(bounds, end, waits)
        first_ms = float(self._start.elapsed_time(self._forward[0][0]))
        return Times(forward, backward, first_ms, end.elapsed_time(last))

    def _backward_ms(
        self, bounds: Sequence[int], end: torch.cuda.Event, waits: Waits
    ) -> list[float]:
        start = self._backward[0][0]
        begins = [start.elapsed_time(event) for event, _ in self._backward]
        lengths = [b - a for a, b in pairwise([*begins, start.elapsed_time(end)])]
        for before, after in waits:
            i = bisect.bisect_right(begins, start.elapsed_time(before)) - 1
            if i >= 0:
                lengths[i] -= before.elapsed_time(after)
        spent = [0.0] * (len(bounds) + 1)
        for (_, place), length in zip(self._backward, lengths, strict=True):
            spent[bisect.bisect_right(bounds, place)] += max(length, 0.0)
        return spent
