"""A step in parts, between calls that begin or end, as the schedule takes it.

The schedule plays a step many times, so it needs few parts and not thousands of events.
The step is cut where one of the calls begins or ends that save most, at most 256, and
each part gets the most bytes that were in use in it, what it was the first to save, and
its times. A binary search places each event: O(n log k) for n events and k cuts.
"""

from __future__ import annotations

import bisect
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate

from oomph.offload.record import Step
from oomph.recompute import timeline
from oomph.recompute.calls import Call, CallTree, Key
from oomph.recompute.stopwatch import Times

_MOST_CALLS = 256  # that are tried
_SAME = 0.02  # by which turns may differ that save as much


class Watched:
    """A step in which calls were watched, and those of a turn that save most.

    Args:
        step: It.
        trees: Of its turns; at least one. What they save has been counted.

    Attributes:
        step: It.
        tree: Of the turn that needs most.
        calls: Of that turn.
    """

    def __init__(self, step: Step, trees: list[CallTree]) -> None:
        self.step, self._trees = step, trees
        self.calls: list[Call] = []
        # Of those that save as much, the one beside which most is in use: gradients.
        most_bytes = (1 - _SAME) * max(tree.saved_bytes for tree in trees)
        self.tree = max(
            (tree for tree in trees if tree.saved_bytes >= most_bytes),
            key=lambda tree: step.between(self._slice_of(tree)).most_bytes(),
        )

    def choose(self, least_bytes: int, may: Callable[[Call], bool]) -> None:
        """Takes the calls that save most: so much at least, of those that may be."""
        found = [c for c in self.tree.calls if c.gain_bytes >= least_bytes and may(c)]
        self.calls = sorted(found, key=lambda call: -call.gain_bytes)[:_MOST_CALLS]

    def marks(self, tree: CallTree) -> list[tuple[Call, bool]]:
        """In the order of time: which of the calls begins in a turn, or ends."""
        keys = {call.key for call in self.calls}
        marks = ((tree.calls[i], is_end) for i, is_end in tree.marks)
        return [(call, is_end) for call, is_end in marks if call.key in keys]

    def bounds(self, tree: CallTree) -> list[int]:
        """The places of these marks, from the first of the step."""
        return [
            (call.end if is_end else call.first) - self.step.first
            for call, is_end in self.marks(tree)
        ]

    def to_try(self) -> tuple[list[int], int]:
        """In which turn the calls are to be tried: the first that has the same.

        There is most room: gradients come later.

        Returns:
            The bounds of that turn, and which it is, from 1, of the turns in which one
            of these modules is called.
        """
        first = self._first_like()
        return self.bounds(self._trees[first]), self.turn_of(self.calls)

    def turn_of(self, calls: Iterable[Call] | None) -> int:
        """The number of the turn that is timed.

        Args:
            calls: Of which turns one of their modules is called in; None: of all.

        Returns:
            The number, from 1.
        """
        until = self._trees[: self._first_like() + 1]
        if calls is None:
            return len(until)
        modules = {call.key[0] for call in calls}
        return sum(
            not modules.isdisjoint(call.key[0] for call in tree.calls) for tree in until
        )

    def _first_like(self) -> int:
        """The index of the first turn that has the same calls."""
        keys = [call.key for call, _ in self.marks(self.tree)]
        return next(
            i
            for i, tree in enumerate(self._trees)
            if [call.key for call, _ in self.marks(tree)] == keys
        )

    def blocks(self, ms: dict[Key, float]) -> list[timeline.Block]:
        """Calls as the schedule takes them.

        Of calls that are alike one may have waited for memory, or used the host's, as
        the device was full: all take as long as the fastest.

        Args:
            ms: How long each takes that may run again, by its key.
        """
        fastest: dict[tuple[object, ...], float] = {}
        for call in self.calls:
            if call.key in ms:
                kind = call.name, call.gain_bytes, call.end - call.first
                fastest[kind] = min(fastest.get(kind, math.inf), ms[call.key])
        marks = self.marks(self.tree)
        begins = {c.key: i for i, (c, is_end) in enumerate(marks) if not is_end}
        ends = {c.key: i for i, (c, is_end) in enumerate(marks) if is_end}
        return [
            timeline.Block(
                begins[call.key] + 1,
                ends[call.key] + 1,
                call.gain_bytes,
                fastest[call.name, call.gain_bytes, call.end - call.first],
            )
            for call in self.calls
            if call.key in ms
        ]

    def record(
        self,
        calls: list[Call],
        blocks: list[timeline.Block],
        spent: Times,
        step: Step,
        link: timeline.Link,
        limit_bytes: float = math.inf,
    ) -> timeline.Record:
        """What a schedule is chosen from.

        Args:
            calls: Those that may run again,
            blocks: and how the schedule takes them.
            spent: Times of the parts of the step in which they were tried.
            step: That step.
            link: Its speed.
            limit_bytes: What may be in use, if kernels may use the host for the rest.
        """
        # A plan counts itself what optimizers' state takes that comes and goes.
        moved_ms = step.state_host_bytes / min(link.out, link.back)
        rest_ms = spent.before + max(spent.after - moved_ms, 0.0)
        turn = self.step.between(self._slice_of(self.tree))
        again = {
            place - self.step.first
            for call in calls
            for place in range(call.first, call.end)
        }
        turn = turn.reachable(limit_bytes + step.state_bytes, again)
        parts = of_step(turn, self.bounds(self.tree), spent)
        return timeline.Record(parts, blocks, rest_ms, step.state_bytes)

    def without(self, calls: Iterable[Call]) -> Step:
        """The step as it would be if these ran again, in each turn."""
        first = self.step.first
        spans = [
            (call.first - first, call.end - first, call.gain_bytes)
            for call in self._in_each_turn(calls)
        ]
        return self.step.without(spans)

    def saved_bytes_without(self, calls: Iterable[Call]) -> int:
        """What the step would save then; their inputs are kept."""
        gains_bytes = sum(call.gain_bytes for call in self._in_each_turn(calls))
        return self.step.total_bytes - gains_bytes

    def _in_each_turn(self, calls: Iterable[Call]) -> Iterator[Call]:
        keys = {call.key for call in calls}
        return (c for tree in self._trees for c in tree.calls if c.key in keys)

    def _slice_of(self, tree: CallTree) -> slice:
        ends = [one.first for one in self._trees if one.first > tree.first]
        first, end = tree.first, min(ends, default=sys.maxsize)
        return slice(first - self.step.first, end - self.step.first)


def without_waits(measured: Times, blocks: list[timeline.Block]) -> Times:
    """The times of a step in which forward waits for no copy.

    The second run of a call waits for none. Elsewhere forward has waited if backward
    takes less, of its time, than in the calls that ran again.
    """
    forward = list(measured.forward)
    ran_again = {i for block in blocks for i in range(block.first, block.end)}
    for block in blocks:
        part = slice(block.first, block.end)
        taken = sum(forward[part]) or 1.0
        factor = min(block.ms / taken, 1.0)
        forward[part] = [ms * factor for ms in forward[part]]
    calls_ms = sum(block.ms for block in blocks)
    back_ms = sum(sum(measured.backward[b.first : b.end]) for b in blocks)
    ratio = back_ms / calls_ms if calls_ms > 0 else 1.0
    if ratio > 0:
        for i, back_ms in enumerate(measured.backward):
            if i not in ran_again:
                forward[i] = min(forward[i], back_ms / ratio)
    return replace(measured, forward=forward)


def of_step(step: Step, bounds: list[int], spent: Times) -> list[timeline.Segment]:
    """The parts of a step between calls that begin or end.

    Args:
        step: It.
        bounds: Places of the boundaries, in the order of time.
        spent: Times of the parts.
    """
    count = len(bounds) + 1

    def segment_of(place: int) -> int:
        """The last that begins at a place or before it; those before may be empty."""
        return bisect.bisect_right(bounds, place)

    forward, backward, saved = [0] * count, [0] * count, [0] * count
    last = 0
    previous = count - 1
    for place, is_use, need_bytes, *_ in step.events:
        now = segment_of(place)
        if is_use:
            backward[previous] = max(backward[previous], need_bytes)
            previous = now
            continue
        # What was in use since the tensor before was saved.
        for i in range(segment_of(last), now + 1):
            forward[i] = max(forward[i], need_bytes)
        last = place
    for place, size_bytes in step.saves:
        saved[segment_of(place)] += size_bytes
    # Where nothing was noted, as much was in use as before.
    forward = list(accumulate(forward, _or_before))
    backward = list(accumulate(reversed(backward), _or_before))[::-1]
    parts = zip(spent.forward, spent.backward, forward, backward, saved, strict=True)
    return [timeline.Segment(*part) for part in parts]


def _or_before(before: int, now: int) -> int:
    return now or before
