"""``oomph fit``: with which step runs end, by those that the first has looked at."""

from __future__ import annotations

import pytest
from oomph.fitting.process import look
from oomph.fitting.process.look import Look, differ
from support import MIB


@pytest.mark.parametrize(
    ("steps", "enough", "until"),
    [
        ([9, 10, 10, 10, 10], 2, 2),  # alike, but for the first
        ([9, 10, 10, 12, 10], 4, 5),  # the step after the peak differs from it
        ([9, 10, 9, 8, 7], 2, 5),
    ],
)
def test_others_end_with_the_peak_only_where_steps_are_alike(steps, enough, until):
    looks = Look(True)
    sizes = [step * MIB for step in steps]
    for count in range(2, len(sizes) + 1):
        looks.goes_on(sizes[:count], max(sizes[:count]), lambda at=count: [at])
    assert (looks.enough, looks.until, looks.trace) == (enough, until, [until])


def test_steps_differ_by_more_than_two_hundredths():
    assert not differ([]) and not differ([5]) and not differ([1, 100, 101])
    assert differ([100, 100, 103])


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (lambda _: 100, 5),  # as long as the run had taken until then
        (lambda second: 100 + 5 * min(second, 9), 9 + 10),  # it rises until then
        (lambda second: 100 + 5 * second, 30),  # it does not end to
    ],
    ids=["level", "rises", "rises on"],
)
def test_it_looks_on_while_the_peak_rises(monkeypatch, size, seconds):
    now = 0.0
    monkeypatch.setattr(look.time, "monotonic", lambda: now)
    looks, now, sizes = Look(True), 5.0, [size(0)] * 2
    while looks.goes_on(sizes, max(sizes), list):
        now += 1.0
        sizes.append(size(int(now) - 5))
    assert now - 5 == seconds
