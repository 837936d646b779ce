"""What leaves the device in the next step, chosen from the record of one.

A step is a row of events: storages are saved, and used in backward. Each says how much
was in use since the one before, as if nothing had left. Where that is more than there
may be, the storages leave that are used last: they are away the longest, so that they
free the most of what is missing later (Belady's rule for caches), and they have the
most time to leave. Of those that would free more than is ever missing the smallest
does, unless it is used at once: kernels would wait for all of it twice, and for what is
missing on host pages they wait no longer.

For n events and storages it costs O(n log n), and at each event a look at no more than
64 storages that are larger than what is missing.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

_LARGER = 64  # storages larger than what is missing that are looked at at once
LEAVES = 2  # events after it was saved, a storage is gone
_AT_ONCE = 8  # events after it was saved, or this part of all, it is used at once

Save = tuple[int, int]  # its place in the step, and its bytes


class Stay(NamedTuple):
    """A storage that may leave: from where it is saved to where it is first used.

    Attributes:
        first: Index of the event at which it is saved.
        last: Of that at which it is used.
        bytes: Its size.
    """

    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class Choice:
    """What leaves.

    Attributes:
        leaving: Indices of the storages.
        missing_bytes: The most that was in use beyond what may be.
        short_bytes: Of that, what nothing that may leave would free.
        away_bytes: What is away at each event.
    """

    leaving: frozenset[int]
    missing_bytes: float
    short_bytes: float
    away_bytes: list[int]


def choose(
    needs: Sequence[int],
    stays: Sequence[Stay],
    limit_bytes: float,
    before: Collection[int] = (),
) -> Choice:
    """Chooses storages so that never more is in use than may be.

    Args:
        needs: Bytes in use up to each event, since the one before, nothing sent.
        stays: The storages that may leave.
        limit_bytes: What may be in use.
        before: Those that leave now, by their indices: chosen at once.

    Returns:
        The choice; all that helps if that is not enough.

    Example:
        >>> stays = [Stay(0, 5, 30), Stay(1, 4, 30), Stay(2, 3, 30)]
        >>> choose([30, 60, 90, 90, 60, 30], stays, 60).leaving
        frozenset({0})
    """
    comes: list[list[int]] = [[] for _ in range(len(needs) + LEAVES)]
    for i, stay in enumerate(stays):
        comes[min(stay.first + LEAVES, len(needs))].append(i)
    returns = [0] * (len(needs) + 1)  # bytes that were away until an event
    staying: list[tuple[int, int]] = []  # the last that is used comes first
    leaving: set[int] = set()
    away = 0
    away_bytes = []
    missing = short = 0.0
    later = list(accumulate(reversed(needs), max))[::-1]  # the most from each on
    at_once = min(_AT_ONCE, len(needs) // _AT_ONCE)
    for event, need in enumerate(needs):
        for i in comes[event]:
            if i in before:
                leaving.add(i)
                away += _leave(stays[i], returns)
            else:
                heapq.heappush(staying, (-stays[i].last, i))
        away -= returns[event]
        excess = need - limit_bytes
        missing = max(missing, excess)
        if excess > away:
            most = later[event] - limit_bytes - away
            for i in _farthest(staying, stays, event, excess - away, most, at_once):
                leaving.add(i)
                away += _leave(stays[i], returns)
            short = max(short, excess - away)
        away_bytes.append(away)
    return Choice(frozenset(leaving), missing, short, away_bytes)


def _leave(stay: Stay, returns: list[int]) -> int:
    """Notes when it is back; gives its bytes."""
    end = min(stay.last + 1, len(returns) - 1)
    returns[end] += stay.bytes
    return stay.bytes


def _farthest(
    staying: list[tuple[int, int]],
    stays: Sequence[Stay],
    event: int,
    missing: float,
    most: float,
    at_once: int,
) -> list[int]:
    """Takes storages out of the heap.

    Args:
        staying: The heap: the last that is used comes first.
        stays: All storages.
        event: Index of an event.
        missing: Bytes that are to be freed for it.
        most: Bytes that are missing then or later.
        at_once: Events after it was saved, what is larger stays if it is used by then.

    Returns:
        What leaves, by its indices; all that helps if that is not enough.
    """
    taken: list[tuple[int, int]] = []
    larger: list[tuple[int, int]] = []
    while missing > 0 and staying and len(larger) < _LARGER:
        entry = heapq.heappop(staying)
        stay = stays[entry[1]]
        if stay.last < event:
            staying.clear()  # it has been used, as all that follow
        elif stay.bytes <= most:
            missing -= stay.bytes
            most -= stay.bytes
            taken.append(entry)
        else:
            larger.append(entry)
    later = [e for e in larger if stays[e[1]].last - stays[e[1]].first > at_once]
    if missing > 0 and later:
        smallest = min(later, key=lambda entry: stays[entry[1]].bytes)
        larger.remove(smallest)
        surplus = stays[smallest[1]].bytes - missing
        # With it, those are not needed any more that are used first.
        for entry in reversed(taken.copy()):
            if stays[entry[1]].bytes <= surplus:
                surplus -= stays[entry[1]].bytes
                taken.remove(entry)
                larger.append(entry)
        taken.append(smallest)
    for entry in larger:
        heapq.heappush(staying, entry)
    return [i for _, i in taken]
