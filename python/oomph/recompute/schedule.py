"""The fastest mixture of keeping, sending and recomputing that fits a device.

:func:`choose` searches for the blocks that make a step shortest. Of two blocks the one
that frees more bytes a millisecond is recomputed first. A block may contain others: it
replaces them where that is cheaper, so the blocks in question form a row of steps with
falling return, the lower hull of all mixtures without the link. What a block frees
comes back at once, in backward, which a small device cannot bear: so blocks that
contain none form another row. What is missing beside the first of a row is sent, and
only its length is searched, from where a bound on the time is lowest: with optimizers'
state on the device, with half of it and with none, and then around the best of these.
At last blocks in which most is in use are left out, or others take their place, as long
as that is better.

All is proportional: of a step with so many times the bytes and the times of another the
plan is the same where the limit is so many times as high.

To find the very best of 2^n mixtures is a knapsack problem. Along a row the greedy
choice is off by less than one block, and each length that is tried costs one play of
the step, O(n): some dozens for each row and each share of the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from oomph.recompute.timeline import Block, Link, Plan, Record, play

_STRIDES = 16  # in a row, at first; halved
_PRECISION = 64  # part of a row
_REPAIRS, _SWAPS = 8, 8  # blocks that give way one by one, each to one of so many
# Of optimizers' state, that are tried on the host beside none, then beside the best.
_STATE_SHARES, _STATE_STRIDES = (0.5, 1.0), (0.25, 0.125, 0.0625)


class Step(NamedTuple):
    """One step along a row: these blocks come, those they contain go."""

    first: int  # segment
    gain_bytes: int
    ms: float
    come: frozenset[int]
    go: frozenset[int] = frozenset()

    @property
    def ratio(self) -> float:
        """Milliseconds a byte: the smaller, the better the return."""
        return self.ms / self.gain_bytes


def _rows(
    blocks: Sequence[Block], roots: list[int], inner: dict[int, list[int]]
) -> tuple[list[Step], list[Step]]:
    """The steps from nothing recomputed to all, the best return first.

    Of all blocks, and of those that contain no other.
    """
    steps = [s for root in roots for s in _steps(root, blocks, inner)]
    innermost = [
        Step(block.first, block.gain_bytes, block.ms, frozenset([i]))
        for i, block in enumerate(blocks)
        if not inner[i]
    ]
    return _in_order(steps), _in_order(innermost)


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
    steps.sort(key=lambda step: step.ratio)
    # The block itself is the last point: steps that lie above the line to it go.
    gain, ms = sum(s.gain_bytes for s in steps), sum(s.ms for s in steps)
    while steps and steps[-1].ratio * (block.gain_bytes - gain) >= block.ms - ms:
        last = steps.pop()
        gain, ms = gain - last.gain_bytes, ms - last.ms
    if block.gain_bytes <= gain:
        return steps
    more = Step(
        block.first,
        block.gain_bytes - gain,
        max(block.ms - ms, 0.0),
        frozenset([root]),
        frozenset(i for s in steps for i in s.come),
    )
    return [*steps, more]


def _in_order(steps: list[Step]) -> list[Step]:
    """The best return first; of about the same return, the last segment first.

    A block comes after those within it: these begin later, or stood before it.
    """

    def key(step: Step) -> tuple[float, int]:
        grade = round(math.log(step.ratio) * 10) if step.ms > 0 else -math.inf
        return grade, -step.first

    return sorted(steps, key=key)


def _taken(steps: Sequence[Step]) -> frozenset[int]:
    chosen: set[int] = set()
    for step in steps:
        chosen -= step.go
        chosen |= step.come
    return frozenset(chosen)


def choose(record: Record, limit_bytes: float, link: Link) -> Plan:
    """The fastest plan that was found.

    Args:
        record: What a step showed.
        limit_bytes: What may be in use at any time.
        link: Its speed.

    Returns:
        The plan. With ``short_bytes`` > 0 nothing that was tried fits.

    Example:
        >>> part = Segment(1.0, 2.0, 50, 50, 50), Segment(1.0, 2.0, 100, 100, 50)
        >>> record = Record(part, [Block(0, 1, 40, 1.0), Block(1, 2, 40, 1.0)])
        >>> choose(record, 70, Link(out=1.0, back=1.0)).recomputed
        frozenset({0})
    """
    best = play(record, frozenset(), limit_bytes, link)
    if best.need_bytes <= limit_bytes:
        return best
    roots, inner = _nested(record.blocks)
    rows = _rows(record.blocks, roots, inner)

    def search(share: float) -> None:
        nonlocal best
        state_bytes = int(share * record.state_bytes)
        for row in rows:
            best = _search(row, best, record, limit_bytes, link, state_bytes)

    search(0.0)
    if record.state_bytes > 0:
        for share in _STATE_SHARES:
            search(share)
        for stride in _STATE_STRIDES:
            share = best.state_bytes / record.state_bytes
            for beside in (share - stride, share + stride):
                if 0 < beside < 1:
                    search(beside)
    return _repaired(best, record, limit_bytes, link, inner, rows[0])


def _repaired(
    best: Plan,
    record: Record,
    limit_bytes: float,
    link: Link,
    inner: dict[int, list[int]],
    steps: list[Step],
) -> Plan:
    """A plan with one block more or less, or with others for one that makes it tight.

    What a block frees comes back at once in its backward, and there it may be too much:
    then those within it are better, or some that do not run again at that time. And the
    last that came may have made another needless.
    """
    blocks = record.blocks
    for _ in range(_REPAIRS):
        chosen, tightest = best.recomputed, best.tightest
        tight = [i for i in chosen if blocks[i].first <= tightest < blocks[i].end]
        more = [step.come for step in steps if not step.come & chosen][:_SWAPS]
        row = [i for step in reversed(steps) for i in step.come & chosen][:_SWAPS]
        others = [chosen - {i} for i in row if i not in tight]
        others += [chosen | come for come in more]
        for i in tight:
            others += [chosen - {i} | {*come} for come in ((), inner[i], *more)]
        plans = [
            play(record, frozenset(other), limit_bytes, link, best.state_bytes)
            for other in others
            if not _overlap(blocks, other)
        ]
        better = min([best, *plans], key=lambda plan: plan.step_ms)
        if better is best:
            break
        best = better
    return best


def _overlap(blocks: Sequence[Block], chosen: Set[int]) -> bool:
    """Whether one contains another."""
    order = sorted((blocks[i].first, blocks[i].end) for i in chosen)
    return any(first < end for (_, end), (first, _) in pairwise(order))


def _search(
    row: list[Step],
    best: Plan,
    record: Record,
    limit_bytes: float,
    link: Link,
    state_bytes: int,
) -> Plan:
    """The fastest plan found in which the first steps of a row are taken, or the best.

    A few lengths are tried, at first far from each other, around the best of them.
    """
    hopes = _hopes(row, record, limit_bytes, link, state_bytes)

    @cache
    def ms_with(k: int) -> float:
        nonlocal best
        if not 0 <= k <= len(row) or hopes[k] >= best.step_ms:
            return math.inf
        plan = play(record, _taken(row[:k]), limit_bytes, link, state_bytes)
        best = min(best, plan, key=lambda plan: plan.step_ms)
        return plan.step_ms

    k = min(hopes.index(min(hopes)), len(row), key=ms_with)
    stride = max(len(row) // _STRIDES, 1)
    while stride > len(row) // _PRECISION:
        before, k = k, min(k, k - stride, k + stride, key=ms_with)
        if k == before:
            stride //= 2
    return best


def _hopes(
    row: list[Step],
    record: Record,
    limit_bytes: float,
    link: Link,
    state_bytes: int,
) -> list[float]:
    """The time of a step in which kernels and link never wait in between.

    By how many steps of a row are taken.
    """
    forward_ms, backward_ms = record.columns.kernels_ms
    missing = record.columns.need_bytes - limit_bytes - state_bytes
    rest_ms = record.rest_ms + state_bytes / min(link.out, link.back)
    gains = accumulate((step.gain_bytes for step in row), initial=0)
    again = accumulate((step.ms for step in row), initial=rest_ms)
    return [
        max(forward_ms, (missing - gain) / link.out)
        + max(backward_ms, (missing - gain) / link.back - ms)
        + ms
        for gain, ms in zip(gains, again, strict=True)
    ]
