"""Does the linear program find the answers that are known?"""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest
from bound import Moment, Movable, Problem, bound_ms, problem_of
from recorded import GIB, Record, Storage
from support import ROOT, must_run

FORWARD_MS, BACKWARD_MS = 40.0, 60.0
INFINITE = 1e15  # bytes per ms


def per_gib(ms: float) -> float:
    """The rate of a link that takes so long for a GiB."""
    return GIB / ms


def step(*recompute_ms: float, rate: float) -> Problem:
    """Forward saves a GiB for each of these, all of which is there at its end."""
    return Problem(
        [FORWARD_MS, BACKWARD_MS],
        [Moment(0.0, 0)],
        [Movable(GIB, ((0, 0),), ms) for ms in recompute_ms],
        out_bytes_per_ms=rate,
        in_bytes_per_ms=rate,
    )


def test_where_nothing_is_missing_a_step_takes_as_long_as_without_a_limit():
    assert bound_ms(step(10, 20, rate=0), 2 * GIB) == pytest.approx(100)


def test_with_an_infinite_link_a_step_takes_as_long_as_without_a_limit():
    assert bound_ms(step(10, 20, rate=INFINITE), 0) == pytest.approx(100, abs=1e-3)


def test_without_a_link_what_costs_least_is_recomputed():
    problem = step(20, 40, 10, 30, rate=0)
    assert bound_ms(problem, 2 * GIB) == pytest.approx(100 + 10 + 20)


def test_a_part_of_a_tensor_can_be_recomputed():
    assert bound_ms(step(20, rate=0), GIB // 2) == pytest.approx(100 + 10)


def test_where_nothing_can_be_recomputed_both_halves_wait_for_the_link():
    problem = step(inf, inf, inf, inf, rate=per_gib(25))
    assert bound_ms(problem, GIB) == pytest.approx(75 + 75)


def test_what_the_link_cannot_carry_in_time_is_recomputed():
    problem = step(15, 10, 40, 30, rate=per_gib(20))  # two GiB leave during forward
    assert bound_ms(problem, 0) == pytest.approx(100 + 10 + 15)


def test_without_a_link_and_recompute_no_schedule_will_do():
    assert bound_ms(step(inf, rate=0), 0) == inf


def test_what_forward_uses_again_is_sent_once_and_fetched_twice():
    tensor = Movable(GIB, ((0, 0), (1, 1)), inf)
    problem = Problem([10, 10, 10], [Moment(0.0, 0)] * 2, [tensor], 0, 0)
    slow_out = problem_with(problem, out=per_gib(20), back=INFINITE)
    slow_in = problem_with(problem, out=INFINITE, back=per_gib(20))
    assert bound_ms(slow_out, 0) == pytest.approx(20 + 10 + 10, abs=1e-3)
    assert bound_ms(slow_in, 0) == pytest.approx(10 + 20 + 20, abs=1e-3)


def problem_with(problem: Problem, out: float, back: float) -> Problem:
    return replace(problem, out_bytes_per_ms=out, in_bytes_per_ms=back)


@pytest.mark.parametrize(("frozen", "expected_ms"), [(0, 200), (2 * GIB, 100)])
def test_residents_come_in_once_and_go_out_once_unless_frozen(frozen, expected_ms):
    rates = per_gib(200), per_gib(100)
    problem = Problem([40, 60], [Moment(0.0, 0)], [], 2 * GIB, frozen, *rates)
    assert bound_ms(problem, GIB) == pytest.approx(expected_ms)


def test_what_the_optimizer_writes_comes_back_after_the_peak():
    rates = INFINITE, per_gib(100)
    problem = Problem([40, 60], [Moment(0.0, 0)], [], 2 * GIB, 0, *rates)
    assert bound_ms(problem, GIB) == pytest.approx(40 + 100)


def test_an_operator_on_host_memory_takes_the_time_of_the_link():
    rate = per_gib(100)
    problem = Problem([40, 60], [Moment(5.0, 3 * GIB)], [], 0, 0, rate, rate)
    # 2 GiB do not fit: one is read while the other is written
    assert bound_ms(problem, GIB) == pytest.approx(40 + 60 - 5 + 100)


def record(*made: Storage, blocks: list[tuple[int, int]]) -> Record:
    """Operators of 10 ms: four of forward, four of backward, one of the optimizer."""
    return Record([10.0] * 9, [1] * 9, 4, 8, blocks, list(made), 0, 0, 1.0, 1.0)


def test_a_tensor_can_be_away_where_no_operator_uses_it():
    problem = problem_of(record(Storage(GIB, [1, 2, 6], 3.0), blocks=[]), moments=8)
    assert problem.movable == [Movable(GIB, ((3, 5),), 3.0)]
    assert [m.touched_bytes // GIB for m in problem.moments] == [0, 1, 1, 0, 0, 0, 1, 0]
    assert problem.windows_ms == [0, *([10] * 7), 20]


def test_a_block_is_recomputed_as_a_whole_but_for_what_it_gives():
    inner = Storage(3 * GIB, [0, 7], 1.0), Storage(GIB, [1, 6], 1.0)
    given, head = Storage(GIB, [1, 2, 5], 1.0), Storage(GIB, [3, 4], 1.0)
    found = record(*inner, given, head, blocks=[(0, 2)]).by_block()
    assert [storage.recompute_ms for storage in found.made] == [15, 5, inf, 1]


def test_the_record_of_a_step_tells_its_time_and_its_peak(tmp_path):
    path = tmp_path / "record.json"
    result = must_run(
        ROOT / "benchmarks" / "offload.py",
        ["mlp", "--steps", "2", "--record", str(path)],
        card="96GiB,gpu=rtx4090",
        settings="offload:off",
    )
    told = json.loads(result.output.splitlines()[-1])
    found = Record.read(path)
    assert sum(found.operators_ms) == pytest.approx(told["steps"][-1]["step_ms"], 0.02)
    assert max(found.used_bytes) == told["peak_bytes"]
    assert len(found.blocks) == 4
    assert bound_ms(problem_of(found), told["peak_bytes"]) == pytest.approx(
        sum(found.operators_ms)
    )
