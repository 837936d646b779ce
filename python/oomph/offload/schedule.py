"""The fastest mixture of keeping, sending and recomputing that fits a device.

A step is a row of segments. Forward passes them from the first to the last, backward
from the last to the first. What a segment saves is *kept* on the device, *sent* to the
host and fetched back, or *recomputed*: a block, which is one or more segments, keeps
its inputs alone, and runs forward again when backward reaches it.

Three resources work at the same time: kernels, the link out and the link back.
:func:`play` runs a step on them and gives its time. :func:`choose` searches for the
blocks that make it shortest. Of two blocks the one that frees more bytes a millisecond
is recomputed first. A block may contain others: it replaces them where that is cheaper,
so the blocks in question form a row of steps with falling return, the lower hull of all
mixtures without the link. What is missing beside the first of that row is sent, and
only its length is searched: as many plays as the logarithm of the number of blocks,
twice.

Nothing here knows PyTorch or a driver: sizes are bytes, times milliseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

# What is on the host without having been sent is written and read there by kernels:
# about so many times it goes over the link.
_PASSES = 4


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
    """Bytes a millisecond, each way."""

    out: float
    back: float


@dataclass(frozen=True)
class Record:
    """What one step showed.

    Attributes:
        segments: In the order of forward.
        blocks: Those that may be recomputed. Of two, one contains the other or they
            have no segment in common.
        rest_ms: What a step takes beside: the optimizer.
    """

    segments: Sequence[Segment]
    blocks: Sequence[Block]
    rest_ms: float = 0.0

    def scaled(self, factor: float) -> Record:
        """The same with all that grows with a batch, so many times as large."""
        return Record(
            [
                Segment(
                    s.forward_ms * factor,
                    s.backward_ms * factor,
                    int(s.forward_bytes * factor),
                    int(s.backward_bytes * factor),
                    int(s.saved_bytes * factor),
                )
                for s in self.segments
            ],
            [
                Block(b.first, b.end, int(b.gain_bytes * factor), b.ms * factor)
                for b in self.blocks
            ],
            self.rest_ms,
        )

    @cached_property
    def hull(self) -> list[Step]:
        """The steps of falling return from nothing recomputed to all."""
        roots, inner = _nested(self.blocks)
        steps = [s for root in roots for s in _steps(root, self.blocks, inner)]
        return sorted(steps, key=lambda s: (s.ms / s.gain_bytes, s.first))


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
    """

    recomputed: frozenset[int]
    step_ms: float
    sent_bytes: int
    need_bytes: int
    short_bytes: int
    recompute_ms: float


@dataclass(frozen=True)
class Step:
    """One step along the hull: these blocks come, those they contain go."""

    first: int  # segment
    gain_bytes: int
    ms: float
    come: frozenset[int]
    go: frozenset[int] = field(default_factory=frozenset)


def _nested(blocks: Sequence[Block]) -> tuple[list[int], dict[int, list[int]]]:
    """Blocks that none contains, and those directly within each."""
    order = sorted(range(len(blocks)), key=lambda i: (blocks[i].first, -blocks[i].end))
    roots: list[int] = []
    inner: dict[int, list[int]] = {i: [] for i in order}
    open_blocks: list[int] = []
    for i in order:
        while open_blocks and not blocks[open_blocks[-1]].contains(blocks[i]):
            open_blocks.pop()
        (inner[open_blocks[-1]] if open_blocks else roots).append(i)
        open_blocks.append(i)
    return roots, inner


def _steps(
    root: int, blocks: Sequence[Block], inner: dict[int, list[int]]
) -> list[Step]:
    """The hull of one block and all that it contains, the best return first."""
    block = blocks[root]
    steps = [s for child in inner[root] for s in _steps(child, blocks, inner)]
    steps.sort(key=lambda s: s.ms / s.gain_bytes)
    # The block itself is the last point: steps that lie above the line to it go.
    gain, ms = sum(s.gain_bytes for s in steps), sum(s.ms for s in steps)
    while True:
        if block.gain_bytes <= gain:
            return steps
        ratio = (block.ms - ms) / (block.gain_bytes - gain)
        if not steps or steps[-1].ms / steps[-1].gain_bytes < ratio:
            break
        last = steps.pop()
        gain, ms = gain - last.gain_bytes, ms - last.ms
    replaced = frozenset(i for s in steps for i in s.come)
    more = Step(
        block.first,
        block.gain_bytes - gain,
        max(block.ms - ms, 0.0),
        frozenset([root]),
        replaced,
    )
    return [*steps, more]


def _taken(steps: Sequence[Step]) -> frozenset[int]:
    chosen: set[int] = set()
    for step in steps:
        chosen -= step.go
        chosen |= step.come
    return frozenset(chosen)


def play(
    record: Record, recomputed: frozenset[int], limit_bytes: float, link: Link
) -> Plan:
    """Runs a step in which these blocks are recomputed and what is missing is sent.

    Args:
        record: What a step showed.
        recomputed: Indices of blocks; none contains another.
        limit_bytes: What may be in use at any time.
        link: Its speed.

    Returns:
        The plan with its time.
    """
    segments, count = record.segments, len(record.segments)
    freed = [0] * (count + 1)  # bytes that recomputing frees after a segment
    again_ms = [0.0] * count  # forward run again before backward of a segment
    sendable = [s.saved_bytes for s in segments]
    for i in recomputed:
        block = record.blocks[i]
        freed[block.end] += block.gain_bytes
        again_ms[block.end - 1] += block.ms
        left = block.gain_bytes
        for k in range(block.end - 1, block.first - 1, -1):
            less = min(sendable[k], left)
            sendable[k] -= less
            left -= less
    forward = [0] * count  # most bytes in use, nothing sent
    backward = [0] * count
    gone = 0
    for k, segment in enumerate(segments):
        gone += freed[k]
        forward[k] = segment.forward_bytes - gone
        backward[k] = segment.backward_bytes - gone
    need = max(max(forward, default=0), max(backward, default=0))
    target = max(need - limit_bytes, 0)
    sent = [0.0] * count
    for k in range(count):
        sent[k] = min(sendable[k], target)
        target -= sent[k]
    ms = _Timeline(segments, sent, limit_bytes, link).run(forward, backward, again_ms)
    ms += record.rest_ms + target * _PASSES / min(link.out, link.back)
    return Plan(
        recomputed, ms, int(sum(sent)), int(need), math.ceil(target), sum(again_ms)
    )


class _Timeline:
    """A step on kernels and link, segment by segment."""

    def __init__(
        self,
        segments: Sequence[Segment],
        sent: list[float],
        limit_bytes: float,
        link: Link,
    ) -> None:
        self._segments, self._sent = segments, sent
        self._limit_bytes, self._link = limit_bytes, link
        self._now = 0.0  # of the kernels
        self._leaving: deque[tuple[float, float]] = deque()  # ends of copies, and bytes
        self._gone = 0.0  # bytes, at the host alone

    def run(
        self, forward: list[int], backward: list[int], again_ms: list[float]
    ) -> float:
        """The time of forward and backward.

        Args:
            forward: Most bytes in use in each segment, nothing sent.
            backward: The same in its backward.
            again_ms: What runs before its backward.
        """
        out_free = 0.0
        for k, segment in enumerate(self._segments):
            self._wait_for_room(forward[k])
            self._now += segment.forward_ms
            if self._sent[k] > 0:
                out_free = max(self._now, out_free) + self._sent[k] / self._link.out
                self._leaving.append((out_free, self._sent[k]))
        # The one that is used next comes last.
        waiting = [k for k in range(len(self._segments)) if self._sent[k] > 0]
        ready: dict[int, float] = {}  # when what a segment sent is back
        back_free = 0.0
        for k in range(len(self._segments) - 1, -1, -1):
            self._wait_for_room(backward[k])
            room = self._limit_bytes - (backward[k] - self._gone)
            while waiting and (waiting[-1] >= k or self._sent[waiting[-1]] <= room):
                i = waiting.pop()
                self._let_go(self._sent[i])
                back_free = max(self._now, back_free) + self._sent[i] / self._link.back
                ready[i] = back_free
                room -= self._sent[i]
            self._now = max(self._now, ready.get(k, 0.0))
            self._now += again_ms[k] + self._segments[k].backward_ms
        return self._now

    def _wait_for_room(self, need_bytes: float) -> None:
        """Kernels wait until enough has left."""
        while self._leaving and self._gone < need_bytes - self._limit_bytes:
            end, size = self._leaving.popleft()
            self._now = max(self._now, end)
            self._gone += size

    def _let_go(self, size_bytes: float) -> None:
        """So much comes back: of what is gone, or else of what was about to leave."""
        while self._leaving and self._gone < size_bytes:
            end, size = self._leaving.popleft()
            self._now = max(self._now, end)
            self._gone += size
        self._gone -= size_bytes


def choose(record: Record, limit_bytes: float, link: Link) -> Plan:
    """The fastest plan that was found.

    Args:
        record: What a step showed.
        limit_bytes: What may be in use at any time.
        link: Its speed; 0 each way where nothing may be sent.

    Returns:
        The plan. With ``short_bytes`` > 0 nothing that was tried fits.

    Example:
        >>> part = Segment(1.0, 2.0, 50, 50, 50), Segment(1.0, 2.0, 100, 100, 50)
        >>> record = Record(part, [Block(0, 1, 40, 1.0), Block(1, 2, 40, 1.0)])
        >>> choose(record, 70, Link(out=1.0, back=1.0)).recomputed
        frozenset({0})
    """
    best = play(record, frozenset(), limit_bytes, link)
    if best.need_bytes <= limit_bytes or not record.blocks:
        return best
    hull = record.hull
    for order in (hull, _from_the_end(hull)):
        tried: dict[int, Plan] = {}

        def at(
            k: int, order: list[Step] = order, tried: dict[int, Plan] = tried
        ) -> Plan:
            if k not in tried:
                tried[k] = play(record, _taken(order[:k]), limit_bytes, link)
            return tried[k]

        stride = max(len(hull) // 6, 1)
        for k in (*range(0, len(hull), stride), len(hull)):
            at(k)
        while stride > 1:
            stride //= 2
            middle = min(tried, key=lambda k: tried[k].step_ms)
            for k in (middle - stride, middle + stride):
                if 0 <= k <= len(hull):
                    at(k)
        found = min(tried.values(), key=lambda plan: plan.step_ms)
        if found.step_ms < best.step_ms:
            best = found
    return best


def _from_the_end(hull: list[Step]) -> list[Step]:
    """The same steps, of those with about the same return the last segment first."""

    def key(step: Step) -> tuple[float, int]:
        ratio = step.ms / step.gain_bytes
        grade = round(math.log(ratio) * 10) if ratio > 0 else -math.inf
        return grade, -step.first

    return sorted(hull, key=key)
