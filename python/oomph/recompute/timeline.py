"""A step on three resources: kernels, the link out and the link back.

A step is a row of segments. Forward passes them from the first to the last, backward
from the last to the first. What a segment saves is kept on the device, sent to the host
and fetched back, or recomputed: a block, which is one or more segments, keeps its
inputs alone, and runs forward again when backward reaches it. :func:`play` runs a step
and gives its time.

Nothing here knows PyTorch or a driver: sizes are bytes, times milliseconds.

It passes each segment once forward and once backward, O(n), so that the schedule can
play hundreds of mixtures between two steps of the program.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import add, sub

# What is on the host without having been sent is written and read there by kernels:
# about so many times it goes over the link.
_PASSES = 4
# Of what may be in use, what comes back ahead of need leaves free: about as much as
# :mod:`oomph.offload.headroom` says of a step that is expected and not recorded.
_FREE_SHARE = 0.05


@dataclass(frozen=True)
class Segment:
    """A part of a step, as it is when everything is kept.

    Attributes:
        forward_ms: Time of its forward.
        backward_ms: Time of its backward.
        forward_bytes: Most bytes in use in its forward.
        backward_bytes: Most bytes in use in its backward.
        saved_bytes: Bytes that it is the first to save and that may be sent.
    """

    forward_ms: float
    backward_ms: float
    forward_bytes: int
    backward_bytes: int
    saved_bytes: int


@dataclass(frozen=True)
class Block:
    """A call that may run again in backward.

    Attributes:
        first: Index of its first segment.
        end: Index after its last.
        gain_bytes: Bytes that it saves, less its inputs and what others save too.
        ms: Time of its forward.
    """

    first: int
    end: int
    gain_bytes: int
    ms: float

    def contains(self, other: Block) -> bool:
        """Whether the other is a part of it."""
        return self.first <= other.first and other.end <= self.end


@dataclass(frozen=True)
class Link:
    """Bytes a millisecond, each way; more than 0."""

    out: float
    back: float


@dataclass(frozen=True)
class Columns:
    """The segments of a record, one list for each attribute."""

    forward_ms: list[float]
    backward_ms: list[float]
    forward_bytes: list[int]
    backward_bytes: list[int]
    saved_bytes: list[int]

    @cached_property
    def kernels_ms(self) -> tuple[float, float]:
        """Time of forward, and of backward."""
        return sum(self.forward_ms), sum(self.backward_ms)

    @cached_property
    def need_bytes(self) -> int:
        """Most bytes in use."""
        return max(*self.forward_bytes, *self.backward_bytes, 0, 0)


@dataclass(frozen=True)
class Record:
    """What one step showed.

    Attributes:
        segments: In the order of forward.
        blocks: Those that may be recomputed. Of two, one contains the other or they
            have no segment in common.
        rest_ms: What a step takes beside: the optimizer.
        state_bytes: Of optimizers' state, which may be on the host but for its turn.
    """

    segments: Sequence[Segment]
    blocks: Sequence[Block]
    rest_ms: float = 0.0
    state_bytes: int = 0

    @cached_property
    def columns(self) -> Columns:
        """The same of all segments, in lists."""
        return Columns(
            [s.forward_ms for s in self.segments],
            [s.backward_ms for s in self.segments],
            [s.forward_bytes for s in self.segments],
            [s.backward_bytes for s in self.segments],
            [s.saved_bytes for s in self.segments],
        )

    def rescaled(self, forward: float, backward: float, rest_ms: float) -> Record:
        """The same, with so many times the time of its parts, and another rest."""
        segments = [
            replace(
                s,
                forward_ms=s.forward_ms * forward,
                backward_ms=s.backward_ms * backward,
            )
            for s in self.segments
        ]
        return replace(self, segments=segments, rest_ms=rest_ms)

    @cached_property
    def left_bytes(self) -> list[list[int]]:
        """What is left to send in the segments of each block that is recomputed."""
        return [self._left_of(block) for block in self.blocks]

    def _left_of(self, block: Block) -> list[int]:
        """Its inputs: in its first segments."""
        inputs = sum(s.saved_bytes for s in self.segments[block.first : block.end])
        inputs -= block.gain_bytes
        left = []
        for segment in self.segments[block.first : block.end]:
            left.append(max(min(segment.saved_bytes, inputs), 0))
            inputs -= left[-1]
        return left


@dataclass(frozen=True)
class Plan:
    """What is recomputed and sent, and what it is expected to cost.

    Attributes:
        recomputed: Indices of blocks.
        step_ms: Time of the step.
        sent_bytes: Bytes that go to the host, each once.
        need_bytes: Most bytes in use, with what is recomputed and nothing sent.
        short_bytes: What neither recomputing nor sending frees: it uses host pages.
        recompute_ms: Of ``step_ms``, forward run again.
        state_bytes: Of optimizers' state, that are on the host.
        tightest: Segment in which most is in use, all sent that may be until then.
    """

    recomputed: frozenset[int]
    step_ms: float
    sent_bytes: int
    need_bytes: int
    short_bytes: int
    recompute_ms: float
    state_bytes: int = 0
    tightest: int = 0

    def does_the_same(self, other: Plan) -> bool:
        """Whether a step under the other is the same, whatever was expected of it."""
        return (self.recomputed, self.state_bytes) == (
            other.recomputed,
            other.state_bytes,
        )


def play(
    record: Record,
    recomputed: frozenset[int],
    limit_bytes: float,
    link: Link,
    state_bytes: int = 0,
) -> Plan:
    """Runs a step in which these blocks are recomputed and what is missing is sent.

    Args:
        record: What a step showed.
        recomputed: Indices of blocks; none contains another.
        limit_bytes: What may be in use at any time.
        link: Its speed.
        state_bytes: Of optimizers' state, that are on the host: they come and go by
            pieces, both ways at once. What of that is hidden is not known.

    Returns:
        The plan with its time.
    """
    columns = record.columns
    limit_bytes += state_bytes
    slower = min(link.out, link.back)
    freed = [0] * len(columns.saved_bytes)  # by recomputing, after a segment
    again_ms = [0.0] * len(freed)  # forward run again before backward of a segment
    sendable = list(columns.saved_bytes)
    for i in recomputed:
        block = record.blocks[i]
        freed[block.end - 1] += block.gain_bytes
        again_ms[block.end - 1] += block.ms
        sendable[block.first : block.end] = record.left_bytes[i]
    # Bytes in use in each segment, nothing sent, beyond what may be.
    allowed = list(accumulate(freed, initial=limit_bytes))
    forward = list(map(sub, columns.forward_bytes, allowed))
    backward = list(map(sub, columns.backward_bytes, allowed))
    missing = list(map(max, forward, backward))
    most = max(missing, default=-limit_bytes)
    sent: list[float] = []
    short = 0.0
    ms = sum(columns.kernels_ms) + sum(again_ms)
    if most > 0:
        sent, short = _send(sendable, missing)
        timeline = _Timeline(sent, link, _FREE_SHARE * limit_bytes)
        timeline.forward(columns.forward_ms, forward)
        timeline.backward(list(map(add, columns.backward_ms, again_ms)), backward)
        ms = timeline.now_ms + short * _PASSES / slower
    return Plan(
        recomputed,
        ms + record.rest_ms + state_bytes / slower,
        round(sum(sent)),
        round(limit_bytes + most),
        math.ceil(short),
        sum(again_ms),
        state_bytes,
        _tightest(sendable, missing),
    )


def _send(sendable: list[int], missing: list[float]) -> tuple[list[float], float]:
    """What each segment sends, the earliest first, and what is missing nevertheless.

    What leaves lowers what is in use from its segment on, and not before.

    Args:
        sendable: Bytes that each segment may send.
        missing: Bytes in use in each beyond what may be.
    """
    count = len(missing)
    later = list(accumulate(reversed(missing), max))[::-1]  # the most from each on
    gone = list(accumulate(sendable, initial=0))  # before each, if all is sent
    # The first that need not send all that it may.
    k = bisect_left(range(count), x=True, key=lambda k: gone[k + 1] >= later[k])
    short = max(0.0, *map(sub, missing[:k], gone[1:]), 0.0)
    rest = [max(most - gone[k], 0.0) for most in later[k : k + 1]]
    return [*sendable[:k], *rest, *[0] * (count - k - 1)], short


def _tightest(sendable: list[int], missing: list[float]) -> int:
    """The segment in which most is missing though all has left that may."""
    left = [*map(sub, missing, accumulate(sendable))]
    return left.index(max(left)) if left else 0


class _Timeline:
    """A step on kernels and link, segment by segment.

    Args:
        sent: Bytes that each segment sends.
        link: Its speed.
        free_bytes: What comes back ahead of need leaves so much free.

    Attributes:
        now_ms: Of the kernels.
    """

    def __init__(self, sent: list[float], link: Link, free_bytes: float) -> None:
        self.now_ms = 0.0
        self._sent, self._link, self._free_bytes = sent, link, free_bytes
        self._leaving: deque[tuple[float, float]] = deque()  # ends of copies, and bytes
        self._gone = 0.0  # bytes, at the host alone

    def forward(self, times_ms: list[float], missing: list[float]) -> None:
        """Runs forward.

        Args:
            times_ms: Time of each segment.
            missing: Bytes in use in it beyond what may be, nothing sent.
        """
        now, out_free, out = self.now_ms, 0.0, self._link.out
        for ms, need, size in zip(times_ms, missing, self._sent, strict=True):
            if need > self._gone:
                now = self._wait_until_gone(now, need)
            now += ms
            if size > 0:
                out_free = (now if now > out_free else out_free) + size / out
                self._leaving.append((out_free, size))
        self.now_ms = now

    def backward(self, times_ms: list[float], missing: list[float]) -> None:
        """Runs backward; what it needs next comes back as soon as there is room.

        Args:
            times_ms: Time of each segment.
            missing: Bytes in use in it beyond what may be, nothing sent.
        """
        now, back_free, back, sent = self.now_ms, 0.0, self._link.back, self._sent
        free = self._free_bytes
        waiting = [k for k, size in enumerate(sent) if size > 0]  # the next comes last
        i = waiting.pop() if waiting else -1
        ready: dict[int, float] = {}  # when what a segment sent is back
        for k in range(len(sent) - 1, -1, -1):
            if missing[k] > self._gone:
                now = self._wait_until_gone(now, missing[k])
            while i >= k or (i >= 0 and sent[i] <= self._gone - missing[k] - free):
                # Of what is gone, or else of what was about to leave.
                now = self._wait_until_gone(now, sent[i])
                self._gone -= sent[i]
                ready[i] = back_free = max(now, back_free) + sent[i] / back
                i = waiting.pop() if waiting else -1
            if k in ready and ready[k] > now:
                now = ready[k]
            now += times_ms[k]
        self.now_ms = now

    def _wait_until_gone(self, now: float, size_bytes: float) -> float:
        """Kernels wait until so much has left, or all; gives the time then."""
        while self._gone < size_bytes and self._leaving:
            end, size = self._leaving.popleft()
            now = max(now, end)
            self._gone += size
        return now
