"""How near does offloading come to what the link allows, and how do others do?"""

from __future__ import annotations

from collections.abc import Callable

import offload_table
import pytest
import seed_scenario
from support import GIB, Result
from ways import FACTORS, TRAININGS, Point, Training, measure

MAX_OF_BOUND = 1.10
MAX_OF_FASTEST = 1.02  # by hand
MAX_ON_HOST = 1.15  # of what is missing
MAX_IDLE = 0.05
STREAMING = ("gpt", "cnn")  # their activations alone pass over the link, one way a time

Cases = dict[seed_scenario.Case, Result]


measured: dict[Training, dict[float, Point]] = {}


def points_of(training: Training) -> dict[float, Point]:
    if training not in measured:
        measured[training] = {point.factor: point for point in measure(training)}
    return measured[training]


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Cases:
    folder = tmp_path_factory.mktemp("scenario")
    return {case: seed_scenario.run(case, folder) for case in seed_scenario.CASES}


@pytest.fixture(params=TRAININGS, ids=lambda training: training.name)
def training(request: pytest.FixtureRequest) -> Training:
    return request.param


@pytest.fixture(params=FACTORS, ids=lambda factor: f"{factor}x")
def point(request: pytest.FixtureRequest, training: Training) -> Point:
    return points_of(training)[request.param]


@pytest.fixture
def clocked(figure, point) -> Callable[..., None]:
    """A figure of this point, computed on the virtual clock."""

    def keep(name: str, value: float, limit: float, unit: str, how: str) -> None:
        figure(
            name=f"{name}, {point.training.name}, {point.factor} x the card",
            value=value,
            limit=limit,
            unit=unit,
            kind="computed",
            how=f"simulated clock; {how}",
        )

    return keep


def test_a_step_is_close_to_what_link_and_compute_allow(clocked, point):
    clocked(
        "step time / bound",
        point.oomph.step_ms / point.bound_ms,
        MAX_OF_BOUND,
        "x",
        f"{point.oomph.step_ms:.1f} ms against {point.bound_ms:.1f} ms of the best "
        f"mixture of keeping, sending and recomputing blocks; without a limit "
        f"{point.floor.step_ms:.1f} ms, {point.missing_bytes / GIB:.2f} GiB missing",
    )


def test_a_step_is_as_fast_as_the_fastest_way_by_hand(clocked, point):
    way = point.fastest_by_hand
    if way is None:
        pytest.skip("all ways by hand die here")
    fastest = point.by_hand[way]
    clocked(
        "step time / that of the fastest way by hand",
        point.oomph.step_ms / fastest.limited.step_ms,
        MAX_OF_FASTEST,
        "x",
        f"{point.oomph.step_ms:.1f} ms against {fastest.limited.step_ms:.1f} ms of "
        f"{way}{' with offload' if fastest.has_offload else ''}",
    )


def test_after_two_steps_nothing_is_rescued(clocked, point):
    rescues = [step["rescues"] for step in point.oomph.steps]
    clocked(
        "steps until nothing is rescued, after the first",
        point.steps_until_calm,
        2,
        "steps",
        f"rescues by step: {rescues}",
    )


def test_little_more_is_offloaded_than_is_missing(clocked, point):
    clocked(
        "bytes on the host / bytes missing",
        point.offloaded_share,
        MAX_ON_HOST,
        "x",
        f"{point.missing_bytes / GIB:.2f} GiB missing; most at a time, what is put "
        f"there at once included; sent ahead of need {point.sent_share:.3f}",
    )


def test_the_link_does_not_idle_while_a_copy_is_ready(clocked, point):
    clocked(
        "link idle while a copy is ready",
        point.idle_share("both", "waiting_ms"),
        MAX_IDLE,
        "of the time from the first copy to the last",
        "events around each copy; ready: computed, or memory free for it",
    )


@pytest.mark.parametrize("way", ["out", "in"])
def test_where_the_link_bounds_a_step_it_hardly_idles_at_all(clocked, point, way):
    if not point.is_bound_by_link(way):
        pytest.skip("compute sets the pace here")
    if point.training.arguments[0] not in STREAMING:
        pytest.skip("the optimizer's state goes both ways, in pieces")
    clocked(
        f"link idle {way} between copies",
        point.idle_share(way, "idle_ms"),
        MAX_IDLE,
        "of the time from the first copy to the last",
        "whether or not a copy was ready",
    )


def by_name(cases: Cases, name: str, allocator: str) -> Result:
    return next(
        result
        for case, result in cases.items()
        if case.name == name and case.allocator == allocator
    )


def test_batch_64_dies_at_the_logits_of_the_evaluation(cases):
    died = by_name(cases, "batch 64, loss estimated first", "native")
    assert died.out_of_memory
    assert "estimate_loss" in died.error
    assert seed_scenario.wanted_gib(died) == 6.14


def test_batch_64_dies_in_the_seventh_block_of_training(cases):
    died = by_name(cases, "batch 64", "native")
    assert died.out_of_memory
    assert seed_scenario.block(died) == 7


@pytest.mark.parametrize("name", ["batch 64, loss estimated first", "batch 64"])
def test_batch_64_finishes_under_oomph(cases, name):
    result = by_name(cases, name, "oomph")
    assert result.code == 0, result.error[-3000:]
    assert "step 4 loss" in result.output


def test_accumulated_batches_of_4_fit_without_any_offload(figure, cases):
    result = by_name(cases, "batch 4, accumulated 16 times", "oomph")
    assert result.code == 0, result.error[-3000:]
    assert result.stats["rescues"] == result.stats["sent_bytes"] == 0
    figure(
        name="peak of GPT-2 124 M, batch 4, accumulated 16 times",
        value=result.stats["allocated_bytes.all.peak"] / GIB,
        limit=9.0,
        unit="GiB",
        kind="deterministic",
        how=f"on {seed_scenario.CARD}; held "
        f"{result.stats['device_bytes_peak'] / GIB:.2f} GiB, "
        f"step {result.stats['step_ms']:.0f} ms on the simulated clock",
    )


def test_the_tables_have_this_training(request, training):
    points = points_of(training).values()
    folder = request.config.getoption("--tables")
    offload_table.keep(folder, points=list(map(offload_table.data_of_point, points)))
    assert training.name in (folder / "offload.md").read_text()


def test_the_tables_have_the_scenario(request, cases):
    folder = request.config.getoption("--tables")
    told = [offload_table.data_of_case(case, result) for case, result in cases.items()]
    offload_table.keep(folder, scenario=told)
    assert "steps until calm" in (folder / "offload.md").read_text()
