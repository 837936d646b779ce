"""Whether memory grows from round to round, by how much of it is allocated alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import torch

from oomph import _C

PERIODS = (1, 4, 16, 64)  # steps
NEEDED = 3  # windows, each with more than the one before
_REST = 8  # windows for which a period that misled is not believed; then twice that


class Counts(NamedTuple):
    """What is allocated on all devices."""

    blocks: int
    size_bytes: int


@dataclass
class _Window:
    period: int
    counts: list[Counts] = field(default_factory=list)  # of the one that goes on
    ended: deque[Counts] = field(default_factory=lambda: deque(maxlen=NEEDED))
    rest: int = 0
    misled: int = 0

    def add(self, now: Counts) -> bool:
        """Adds a step; whether a window ended, and the last of them grew throughout."""
        self.counts.append(now)
        if len(self.counts) < self.period:
            return False
        self.ended.append(_least(self.counts))
        self.counts.clear()
        if self.rest > 0:
            self.rest -= 1
            return False
        return self.grows()

    def grows(self) -> bool:
        """Whether blocks or bytes, at their least, grew from window to window."""
        if len(self.ended) < NEEDED:
            return False
        return any(all(b[i] > a[i] for a, b in pairwise(self.ended)) for i in (0, 1))


class Growth:
    """Watches counts over windows of several lengths.

    What is allocated at the end of a step differs from step to step for good reasons:
    lengths, evaluation now and then, caches that fill. The least of a window does not
    grow by any of these for long.
    """

    def __init__(self) -> None:
        self._windows = [_Window(period) for period in PERIODS]

    def add(self, now: Counts) -> int | None:
        """Adds a step. Gives the shortest period over which memory grows, or None."""
        growing = [window.period for window in self._windows if window.add(now)]
        return growing[0] if growing else None

    def misled(self, period: int) -> None:
        """What grew over this period was no leak: it is not believed for a while."""
        window = next(w for w in self._windows if w.period == period)
        window.misled += 1
        window.rest = _REST << min(window.misled, 10)


def is_quiet(levels: Sequence[Counts]) -> bool:
    """Whether neither blocks nor bytes have grown, at their least.

    Args:
        levels: Of rounds, of which the later half is compared with the earlier.
    """
    half = len(levels) // 2
    early, late = (_least(part) for part in (levels[:half], levels[half:]))
    return late.blocks <= early.blocks and late.size_bytes <= early.size_bytes


def longest_rest(levels: Sequence[Counts]) -> int:
    """For how many rounds, at most, no block came to stay, but for the last such rest.

    Args:
        levels: Of rounds.
    """
    stays = accumulate((level.blocks for level in reversed(levels)), min)
    rests = [len(list(same)) for _, same in groupby(stays)]
    return max(rests[1:], default=0)


def _least(levels: Iterable[Counts]) -> Counts:
    return Counts(*map(min, zip(*levels, strict=True)))


def counts() -> Counts:
    """What is allocated now."""
    blocks = size_bytes = 0
    for device in range(torch.cuda.device_count()):
        now = Counts(*_C.allocated(device))
        blocks += now.blocks
        size_bytes += now.size_bytes
    return Counts(blocks, size_bytes)
