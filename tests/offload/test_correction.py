"""What is planned from is set right by the times that steps take under the plan."""

from __future__ import annotations

import pytest
from oomph.offload.segments import without_waits
from oomph.recompute.correction import Correction
from oomph.recompute.stopwatch import Times
from oomph.recompute.timeline import Block, Link, Plan, Record, Segment

LINK = Link(out=1.0, back=1.0)
STATE_BYTES = 20


class Watch:
    """A stopwatch of a step that has ended on the device.

    Args:
        times: Of the step.
    """

    def __init__(self, times: Times) -> None:
        self.times = times

    def stop(self) -> None:
        """The step ends."""

    def has_passed(self) -> bool:
        return True

    def measured(self, *_: object) -> Times:
        return self.times

    def step_ms(self) -> float:
        times = self.times
        parts = sum(times.forward) + sum(times.backward)
        return times.before + parts + times.after


def record_of(forward_ms: float, backward_ms: float, rest_ms: float) -> Record:
    segments = [Segment(forward_ms / 2, backward_ms / 2, 1, 1, 1)] * 2
    return Record(segments, [Block(0, 1, 1, 1.0)], rest_ms, STATE_BYTES)


def corrected(record: Record, before_ms: float, times: Times) -> Record | None:
    """The record after steps under a plan that took so long."""
    plan = Plan(frozenset([0]), 1000.0, 0, 2, 0, 5.0, STATE_BYTES)
    correction = Correction(before_ms)
    for _ in range(2):  # the first is not measured
        correction.measure(Watch(times), ())  # type: ignore[arg-type]
    return correction.correct(record, plan, 1.0, LINK)


def test_each_part_of_a_record_gets_the_time_that_it_takes_under_a_plan():
    # What was recorded used host pages: backward, and the optimizer most of all.
    recorded = record_of(forward_ms=10.0, backward_ms=100.0, rest_ms=452.0)
    times = Times([8.0], [25.0], before=2.0, after=23.0)
    found = corrected(recorded, 2.0, times)
    assert found is not None
    assert found.columns.kernels_ms == pytest.approx((8.0, 20.0))  # 5 ran again
    assert found.rest_ms == pytest.approx(2.0 + 3.0)  # state comes and goes in 20


def test_a_forward_that_waits_for_room_is_not_taken_to_be_longer():
    recorded = record_of(forward_ms=10.0, backward_ms=20.0, rest_ms=5.0)
    assert corrected(recorded, 0.0, Times([40.0], [25.0], 0.0, 25.0)) is None
    found = corrected(recorded, 0.0, Times([40.0], [45.0], 0.0, 25.0))
    assert found is not None
    assert found.columns.kernels_ms == pytest.approx((10.0, 40.0))


def test_forward_may_begin_with_a_later_call_than_in_the_record():
    recorded = record_of(forward_ms=30.0, backward_ms=20.0, rest_ms=5.0)
    times = Times([18.0], [25.0], before=14.0, after=23.0)
    assert corrected(recorded, 2.0, times) is None
    recorded = record_of(forward_ms=60.0, backward_ms=20.0, rest_ms=5.0)
    found = corrected(recorded, 2.0, times)
    assert found is not None
    assert found.columns.kernels_ms == pytest.approx((30.0, 20.0))
    assert found.rest_ms == pytest.approx(2.0 + 3.0)


def test_parts_that_are_wrong_are_set_right_though_their_sum_is_not():
    recorded = record_of(forward_ms=10.0, backward_ms=40.0, rest_ms=5.0)
    plan = Plan(frozenset([0]), 60.0, 0, 2, 0, 5.0, STATE_BYTES)
    times = Times([10.0], [25.0], before=0.0, after=25.0)
    assert sum(times.forward) + sum(times.backward) + times.after == plan.step_ms
    found = corrected(recorded, 0.0, times)
    assert found is not None
    assert found.columns.kernels_ms == pytest.approx((10.0, 20.0))


def test_a_record_that_says_what_steps_take_stays():
    plan = Plan(frozenset([0]), 60.0, 0, 2, 0, 5.0, STATE_BYTES)
    correction = Correction()
    for _ in range(2):
        times = Times([10.0], [25.0], before=0.0, after=25.0)
        correction.measure(Watch(times), ())  # type: ignore[arg-type]
    assert correction.step_ms == pytest.approx(60.0)
    assert correction.correct(record_of(10, 20, 5), plan, 1.0, LINK) is None


def test_where_a_call_ran_again_its_second_run_says_what_forward_takes():
    # In forward all waited. In backward one of two calls waited, too, for host pages.
    measured = Times([30.0, 30.0, 30.0], [20.0, 180.0, 20.0], before=0.0, after=0.0)
    blocks = [Block(0, 1, 1, 10.0), Block(1, 2, 1, 10.0)]
    found = without_waits(measured, blocks)
    assert found.forward[:2] == [10.0, 10.0]
    assert found.forward[2] == pytest.approx(20.0 / 10)  # backward takes 10 times that
    assert found.backward == measured.backward
