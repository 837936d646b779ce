"""How long does it take to choose what is recomputed?"""

from __future__ import annotations

import time
from random import Random

import pytest
from oomph.recompute import schedule, timeline
from support import MIB

LAYERS = 100
MOST_PLAYS = 8
LINKS = {"slow": 5e5, "as fast as kernels": 2e6, "fast": 8e6}  # bytes a millisecond


def record_of(layers: int) -> timeline.Record:
    """A transformer: of each layer itself, its attention and its MLP may run again."""
    draw = Random(1)
    segments: list[timeline.Segment] = []
    blocks: list[timeline.Block] = []
    in_use = 0

    def add(ms: float, saved_mib: int, extra_mib: int = 0) -> int:
        nonlocal in_use
        in_use += saved_mib * MIB
        need = in_use + extra_mib * MIB
        segment = timeline.Segment(ms, 2 * ms, need, need, saved_mib * MIB)
        segments.append(segment)
        return len(segments) - 1

    for _ in range(layers):
        times = [ms + draw.random() / 10 for ms in (3.0, 5.0)]
        first = add(0.1, 4)
        attention = add(times[0], 30, extra_mib=5)
        add(0.1, 4)
        mlp = add(times[1], 40, extra_mib=10)
        end = add(0.1, 0) + 1
        blocks += [
            timeline.Block(first, end, 74 * MIB, sum(times) + 0.3),
            timeline.Block(attention, attention + 1, 26 * MIB, times[0]),
            timeline.Block(mlp, mlp + 1, 36 * MIB, times[1]),
        ]
    add(20, 200, extra_mib=400)
    return timeline.Record(segments, blocks, rest_ms=20)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("share", [0.8, 0.4, 0.2])
def test_a_plan_of_300_blocks_takes_a_few_plays(figure, monkeypatch, link, share):
    limit_bytes = share * record_of(LAYERS).columns.need_bytes
    speed = timeline.Link(LINKS[link], LINKS[link])
    plays: list[int] = []
    play = timeline.play

    def counted(*arguments):
        plays.append(1)
        return play(*arguments)

    times = []
    for _ in range(5):
        record = record_of(LAYERS)
        start = time.process_time()
        schedule.choose(record, limit_bytes, speed)
        times.append(time.process_time() - start)
    monkeypatch.setattr(schedule, "play", counted)
    schedule.choose(record, limit_bytes, speed)
    figure(
        name=f"plays for a plan, {3 * LAYERS} blocks, {share} of the memory, {link}",
        value=len(plays),
        limit=MOST_PLAYS,
        unit="plays",
        kind="deterministic",
        how=f"nothing cached: {min(times) * 1e3:.1f} ms of processor time",
    )
