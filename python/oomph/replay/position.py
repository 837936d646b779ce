"""Where a step ended, and whether what runs again had run by then.

The calls of then and now are compared from the outermost on. The first that differ
decide: by the order in which a module holds its modules, or else by the place in the
source. So nothing has to be traced before a step fails; where neither tells, it is
taken not to have run. It costs a walk over the stack.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple

from torch import nn

from oomph.holders.frames import locals_of, position_of
from oomph.replay.again import AGAIN


class _Place(NamedTuple):
    """Where a call is.

    Attributes:
        code: That it runs.
        end: Where the expression ends that it is at: the line, and the column. What is
            computed first ends first.
        owner: Identity of what it is a method of.
    """

    code: CodeType
    end: tuple[int, int]
    owner: int


class Position:
    """The calls that a step was in as it ended, and their lines.

    Args:
        stack: Of the step's function and the calls within, the innermost first.
    """

    def __init__(self, stack: Iterable[tuple[FrameType, int]]) -> None:
        self._failed = [*_places(stack)][::-1]
        self._order: dict[int, tuple[int, int]] = {}

    def know(self, modules: Iterable[nn.Module]) -> None:
        """Learns which of the modules that one holds comes after which."""
        for holder in modules:
            for number, module in enumerate(holder._modules.values()):
                self._order.setdefault(id(module), (id(holder), number))

    def is_past(self) -> bool:
        """Whether the line that runs now, in the same calls, had run already."""
        now = [*_places(_running())][::-1]
        # The first is made anew, to run again.
        is_first = True
        for place, failed in zip(now, self._failed, strict=False):
            if not is_first and place.code is not failed.code:
                return False
            if not is_first and place.owner != failed.owner:
                return self._is_before(place.owner, failed.owner)
            if place.end != failed.end:
                return place.end < failed.end
            is_first = False
        return False

    def _is_before(self, owner: int, other: int) -> bool:
        first, second = self._order.get(owner), self._order.get(other)
        return first is not None and second is not None and first < second


def _running() -> Iterator[tuple[FrameType, int]]:
    """From here to the function that runs the step again."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, frame.f_lineno
        if frame.f_code.co_name in (AGAIN, "<module>"):
            return
        frame = frame.f_back


def _places(stack: Iterable[tuple[FrameType, int]]) -> Iterator[_Place]:
    """Without PyTorch's calls, which hooks change, and ours."""
    for frame, line in stack:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "oomph"):
            owner = locals_of(frame).get("self")
            end = _end_of(frame) if frame.f_lineno == line else (line, 0)
            yield _Place(frame.f_code, end, 0 if owner is None else id(owner))


def _end_of(frame: FrameType) -> tuple[int, int]:
    """Where the expression ends that a frame is at; in Python 3.10 only the line."""
    _, line, _, column = position_of(frame)
    return line or frame.f_lineno, column or 0
