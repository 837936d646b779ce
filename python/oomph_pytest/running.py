"""One test: whether it can run, what it does to GPU memory, and what is wrong."""

from __future__ import annotations

import gc
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from oomph_pytest import gpu, markers, names, store
from oomph_pytest.markers import Check, Seen

SECTION = "GPU memory"


@dataclass
class Verdict:
    """What a test's report gets.

    Attributes:
        problems: What is wrong, a text each.
        section: The lines that hold the memory, or why they are not known.
        peak_bytes: The test's peak, for JUnit; None: it was not measured.
    """

    problems: list[str] = field(default_factory=list)
    section: str = ""
    peak_bytes: int | None = None


_VERDICT = pytest.StashKey[Verdict]()


def prepare(item: pytest.Item) -> None:
    """Before the fixtures: skips where there is no GPU, fails for bad markers."""
    try:
        checks = markers.checks_of(item)
    except markers.MarkerError as error:  # the one error is all that is shown
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    reason = gpu.why_absent()
    if reason is None and _needs_values(checks) and not gpu.computes():
        reason = (
            "no_worse_metric: this simulated GPU computes nothing; one with "
            "memory=values does"
        )
    if reason is not None:
        raise pytest.skip.Exception(reason, _use_item_location=True)
    gpu.check_allocator()


def _needs_values(checks: list[Check]) -> bool:
    return any(isinstance(check, markers.NoWorseMetric) for check in checks)


def _is_judged(check: Check, error: BaseException | None) -> bool:
    """Whether a check has a say, by how the test itself ended."""
    if isinstance(check, markers.FitsCuda):
        return error is not None
    return error is None or isinstance(check, markers.NoOom)


def on_card(item: pytest.Item) -> markers.FitsCuda | None:
    """The card of its own on which a test is to run in another process, if any."""
    if names.is_on_card or item.get_closest_marker(names.FITS) is None:
        return None
    try:
        checks = markers.checks_of(item)
    except markers.MarkerError:  # which prepare() shows
        return None
    return next(check for check in checks if isinstance(check, markers.FitsCuda))


class _Watch:
    """Measures a test while it runs."""

    def __init__(self, item: pytest.Item) -> None:
        from oomph_pytest import meter, sites
        from oomph_pytest.benchmark import fixture_of

        self.item = item
        self.checks = markers.checks_of(item)
        self.fixture = fixture_of(item)
        meter.prepare()
        gc.collect()  # garbage of other tests must not be freed by this one
        self.lines = sites.start(item.config.option.cuda_memory_sites)
        self.meter = meter.Meter(self.lines.note_peak if self.lines else None)
        self.steps: list[meter.Steps] = []  # an optimizer's, the test's own
        self._ends = ExitStack()
        self._ends.callback(self.meter.stop)
        if any(isinstance(check, markers.StablePeak) for check in self.checks):
            self._follow_steps()

    def _follow_steps(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from oomph_pytest.meter import Steps

        by_optimizer, own = Steps(self.meter), Steps(self.meter)
        self.steps = [by_optimizer, own]
        for steps in self.steps:
            self._ends.callback(steps.stop)
        # A compiled step calls it as it is.
        end = torch._disable_dynamo(  # type: ignore[attr-defined]
            lambda *_: by_optimizer.end()
        )
        hook = register_optimizer_step_post_hook(end)
        self._ends.callback(hook.remove)
        if self.fixture is not None:
            self.fixture.follow(own)
            self._ends.callback(self.fixture.follow, None)

    def stop(self) -> None:
        """Ends the measuring, but for the lines."""
        if any(isinstance(check, markers.LimitLeaks) for check in self.checks):
            gc.collect()  # what only waits for the collector is no leak
        self._ends.close()

    def seen(self) -> Seen:
        """What was measured."""
        above, config = self.meter.above, self.item.config
        devices = [
            markers.Device(
                index=i,
                peak_bytes=above(i, "allocated_peak"),
                left_bytes=above(i, "allocated"),
                ooms=above(i, "ooms"),
                rescues=above(i, "rescues"),
            )
            for i in range(len(self.meter.base))
        ]
        run = store.baseline(config) if _needs_values(self.checks) else None
        stored = run.test(self.item.nodeid).get("metrics", {}) if run else None
        by_optimizer, own = (
            (steps.peaks for steps in self.steps) if self.steps else ((), ())
        )
        return Seen(
            devices,
            by_optimizer,
            own,
            oom_texts=self.meter.oom_texts,
            metrics=self.fixture.metrics if self.fixture else {},
            stored_metrics=stored,
            is_stored=config.option.cuda_memory_save is not None,
        )

    def growth(self) -> list[str]:
        """What grew by more than --cuda-memory-fail allows."""
        config = self.item.config
        run = store.compared(config)
        before = run.test(self.item.nodeid).get("figures") if run else None
        if not run or not before or not self.fixture or not self.fixture.figures:
            return []
        now, rules = self.fixture.figures, store.rules(config)
        found = (rule.problem(now, before, run.name) for rule in rules)
        return [problem for problem in found if problem]

    def verdict(self, error: BaseException | None) -> Verdict:
        """Judges; of a test that fails by itself, only whether memory ran out."""
        seen = self.seen()
        broken = [
            (check, problem)
            for check in self.checks
            if _is_judged(check, error) and (problem := check.problem(seen))
        ]
        verdict = Verdict([problem for _, problem in broken])
        growth = self.growth() if error is None else []
        verdict.problems += growth
        if self.checks:
            verdict.peak_bytes = max(device.peak_bytes for device in seen.devices)
        of_memory = [c for c, _ in broken if not isinstance(c, markers.NoWorseMetric)]
        if of_memory or growth:
            lines = self._section(of_memory)
            own = verdict.problems if error is not None else []  # not shown otherwise
            verdict.section = "\n".join([*own, lines])
        return verdict

    def _section(self, broken: Sequence[Check]) -> str:
        """Who holds the memory: after the test, or at the peak, as the problems ask."""
        from oomph_pytest import sites

        of_leaks = [isinstance(check, markers.LimitLeaks) for check in broken]
        texts = []
        if not (broken and all(of_leaks)):
            texts.append(sites.describe(self.lines, "at the peak", at_peak=True))
        if any(of_leaks):
            texts.append(sites.describe(self.lines, "after the test", at_peak=False))
        return "\n".join(dict.fromkeys(texts))


def _warm_up(item: pytest.Item) -> None:
    """Runs a test as often as limit_cuda_leaks says, without measuring it."""
    from oomph_pytest.benchmark import fixture_of

    for check in markers.checks_of(item):
        if isinstance(check, markers.LimitLeaks):
            for _ in range(check.warmups):
                item.runtest()
    fixture = fixture_of(item)
    if fixture is not None:
        fixture.forget()


def watch(item: pytest.Item) -> Generator[None, object, object]:
    """Measures what runs at the ``yield``, then fails the test or gives its result."""
    item.stash[_VERDICT] = Verdict()
    _warm_up(item)
    watched = _Watch(item)
    with ExitStack() as ends:
        if watched.lines is not None:
            ends.callback(watched.lines.stop)
        try:
            result = yield
        except BaseException as error:
            watched.stop()
            item.stash[_VERDICT] = watched.verdict(error)
            raise
        watched.stop()
        verdict = item.stash[_VERDICT] = watched.verdict(None)
    if verdict.problems:
        pytest.fail("\n".join(verdict.problems), pytrace=False)
    return result


def complete_report(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds a test's verdict and figures to its report."""
    verdict = item.stash.get(_VERDICT, Verdict())
    fixture = None
    if call.excinfo is None or verdict.problems:
        from oomph_pytest.benchmark import fixture_of

        fixture = fixture_of(item)
    if verdict.peak_bytes is not None:
        item.user_properties.append(("cuda_memory_test_peak_bytes", verdict.peak_bytes))
    if fixture is not None:
        item.user_properties.extend(fixture.properties())
    report = yield
    found: dict[str, Any] = {"problem": bool(verdict.problems and report.failed)}
    if fixture is not None and (fixture.figures or fixture.metrics):
        found.update(
            nodeid=item.nodeid,
            outcome=report.outcome,
            environment=gpu.describe(),
            **fixture.as_json(),
        )
    if verdict.section:
        report.sections.append((SECTION, verdict.section))
    report.__dict__["cuda_memory"] = found  # travels with the report, from a worker too
    return report
