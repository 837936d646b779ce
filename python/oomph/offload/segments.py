"""A step in parts, between calls that begin or end, as the schedule takes it."""

from __future__ import annotations

import bisect
from itertools import accumulate

from oomph.offload.record import Step
from oomph.recompute import timeline
from oomph.recompute.followers import Times


def without_waits(measured: Times, blocks: list[timeline.Block]) -> Times:
    """The times of a step in which forward waits for no copy.

    The second run of a call waits for none. Where backward takes less, of the time that
    forward takes, than in the calls that ran again, forward has waited.
    """
    forward = list(measured.forward)
    for block in blocks:
        part = slice(block.first, block.end)
        taken = sum(forward[part]) or 1.0
        factor = min(block.ms / taken, 1.0)
        forward[part] = [ms * factor for ms in forward[part]]
    calls_ms = sum(block.ms for block in blocks)
    back_ms = sum(sum(measured.backward[b.first : b.end]) for b in blocks)
    ratio = back_ms / calls_ms if calls_ms > 0 else 1.0
    if ratio > 0:
        pairs = zip(forward, measured.backward, strict=True)
        forward = [min(ms, back / ratio) for ms, back in pairs]
    return Times(forward, measured.backward, measured.rest)


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
