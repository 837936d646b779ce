"""The markers: what they demand, and whether a test meets it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from oomph import simulate
from oomph.base.sizes import format_size, parse_size
from oomph.fitting import cards
from oomph.fitting.measuring import Way

from oomph_pytest.names import FITS, FIXTURE, MARKERS
from oomph_pytest.store import Allowance

CHECKS = pytest.StashKey[list["Check"]]()


class MarkerError(Exception):
    """A marker has arguments that make no sense. Says which and why."""


@dataclass(frozen=True)
class Device:
    """What one GPU saw of a test; bytes are above those before the test.

    Attributes:
        index: Its number.
        peak_bytes: The most that was allocated at a time.
        left_bytes: What was alive afterwards.
        ooms: How often an allocation ran out of memory.
        rescues: Blocks that oomph put on the host for want of memory.
    """

    index: int
    peak_bytes: int
    left_bytes: int
    ooms: int
    rescues: int


@dataclass(frozen=True)
class Seen:
    """What was measured of a test.

    Attributes:
        devices: Of each GPU.
        optimizer_peaks: The peak of each GPU in each step that an optimizer ended.
        own_peaks: The same of steps that the test itself ended; they win.
        oom_texts: What ran out of memory, and where, as far as it is known.
        metrics: What the test reported.
        stored_metrics: What it reported in the stored run; None: there is no run.
        is_stored: Whether this run will be stored.
    """

    devices: Sequence[Device]
    optimizer_peaks: Sequence[Sequence[int]] = ()
    own_peaks: Sequence[Sequence[int]] = ()
    oom_texts: Sequence[str] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    stored_metrics: dict[str, float] | None = None
    is_stored: bool = False

    def where(self, device: int) -> str:
        """Names the device, where there are several."""
        return f" of GPU {device}" if len(self.devices) > 1 else ""


# ---- The checks: each is made with the arguments of its marker


class LimitMemory:
    """limit_cuda_memory."""

    def __init__(self, limit: object) -> None:
        self.limit_bytes = _size(limit)

    def problem(self, seen: Seen) -> str | None:
        """What is wrong, in a sentence; compares the GPU with the highest peak."""
        worst = max(seen.devices, key=lambda device: device.peak_bytes)
        if worst.peak_bytes <= self.limit_bytes:
            return None
        return (
            f"Test was limited to {format_size(self.limit_bytes)} but allocated "
            f"{format_size(worst.peak_bytes)} of GPU memory{seen.where(worst.index)}"
        )


class LimitLeaks:
    """limit_cuda_leaks."""

    def __init__(self, limit: object, warmups: object = 0) -> None:
        self.limit_bytes = _size(limit)
        self.warmups = _count("warmups", warmups, 0)

    def problem(self, seen: Seen) -> str | None:
        """Compares the GPU on which most is left."""
        worst = max(seen.devices, key=lambda device: device.left_bytes)
        if worst.left_bytes <= self.limit_bytes:
            return None
        return (
            f"Test was allowed to leave {format_size(self.limit_bytes)} but left "
            f"{format_size(worst.left_bytes)} of GPU memory{seen.where(worst.index)} "
            "allocated"
        )


class StablePeak:
    """stable_cuda_peak."""

    def __init__(
        self,
        steps: object,
        warmup: object = 1,
        optimizer_steps: object = 1,
        tolerance: object = 0,
    ) -> None:
        self.steps = _count("steps", steps, 2)
        self.warmup = _count("warmup", warmup, 0)
        self.optimizer_steps = _count("optimizer_steps", optimizer_steps, 1)
        self.tolerance_bytes = _size(tolerance)

    def problem(self, seen: Seen) -> str | None:
        """Compares the peaks of the steps after the warm-up with the first of them."""
        peaks = [list(step) for step in seen.own_peaks] or self._gathered(seen)
        wanted = self.warmup + self.steps
        if len(peaks) < wanted:
            return (
                f"Test must show a stable peak over {self.steps} steps after "
                f"{self.warmup} of warm-up, but ended only {len(peaks)}; a step ends "
                f"with {self._end()} or with {FIXTURE}.step()"
            )
        for device in seen.devices:
            series = [step[device.index] for step in peaks[self.warmup :]]
            if max(series) > series[0] + self.tolerance_bytes:
                return self._growth(series, seen.where(device.index))
        return None

    def _end(self) -> str:
        n = self.optimizer_steps
        return "an optimizer's step" if n == 1 else f"{n} steps of an optimizer"

    def _gathered(self, seen: Seen) -> list[list[int]]:
        """The peaks of so many steps of an optimizer each."""
        n, all_peaks = self.optimizer_steps, seen.optimizer_peaks
        return [
            [max(of_device) for of_device in zip(*all_peaks[i : i + n], strict=True)]
            for i in range(0, len(all_peaks) - n + 1, n)
        ]

    def _growth(self, series: list[int], where: str) -> str:
        high = max(range(len(series)), key=series.__getitem__)
        first = self.warmup + 1
        return (
            f"Peak of GPU memory{where} is not stable: {format_size(series[0])} in "
            f"step {first}, {format_size(series[high])} in step {first + high}, "
            f"{format_size((series[high] - series[0]) / high)} more in each "
            f"(tolerance {format_size(self.tolerance_bytes)})"
        )


class NoOom:
    """no_cuda_oom."""

    def __init__(self, allow_rescues: object = True) -> None:
        if not isinstance(allow_rescues, bool):
            raise ValueError(f"{allow_rescues=} must be True or False")
        self.allow_rescues = allow_rescues

    def problem(self, seen: Seen) -> str | None:
        """Counts errors, caught or not, and rescues if they count as such."""
        ooms = sum(device.ooms for device in seen.devices)
        rescues = sum(device.rescues for device in seen.devices)
        if ooms:
            times = "once" if ooms == 1 else f"{ooms} times"
            which = "".join(f"\n  {text}" for text in seen.oom_texts[:10])
            return f"Test must not run out of GPU memory, but did {times}:{which}"
        if rescues and not self.allow_rescues:
            return (
                "Test must not run out of GPU memory; oomph rescued it by putting "
                f"{rescues} blocks on the host"
            )
        return None


class NoWorseMetric:
    """no_worse_metric."""

    def __init__(
        self,
        name: object,
        tolerance: object = 0,
        better: object = "lower",
        baseline: object = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{name!r} is not the name of a metric")
        if not isinstance(better, str) or better not in ("lower", "higher"):
            raise ValueError(f"{better=} must be 'lower' or 'higher'")
        self.baseline: float | None = None
        if baseline is not None:
            if not isinstance(baseline, int | float) or not math.isfinite(baseline):
                raise ValueError(f"{baseline=} is not a number")
            self.baseline = float(baseline)
        self.name, self.better = name, better
        self.allowance = Allowance.parse(tolerance, float)

    def problem(self, seen: Seen) -> str | None:
        """Compares with the marker's own baseline, or that of the stored run."""
        if self.name not in seen.metrics:
            return (
                f"Test reported no metric {self.name!r}: it must call "
                f"{FIXTURE}.metric({self.name!r}, value)"
            )
        baseline = self.baseline
        if baseline is None:
            baseline = (seen.stored_metrics or {}).get(self.name)
        if not isinstance(baseline, int | float):  # such as "nan"
            return None if seen.is_stored else self._nothing_stored(seen)
        value = seen.metrics[self.name]
        worse = value - baseline if self.better == "lower" else baseline - value
        if worse <= self.allowance.of(abs(baseline)):  # never so for NaN
            return None
        return (
            f"Metric {self.name!r} got worse: {value:.6g}, it was {baseline:.6g} "
            f"({self.better} is better, tolerance {self.allowance})"
        )

    def _nothing_stored(self, seen: Seen) -> str:
        what = "no run is stored" if seen.stored_metrics is None else "it has none"
        return (
            f"Metric {self.name!r} cannot be compared: {what} for this "
            "test; --cuda-memory-save stores a run, baseline= states a value"
        )


class FitsCuda:
    """fits_cuda."""

    def __init__(
        self,
        card: object,
        way: object = "oomph",
        host: object = cards.HOST,
        seconds: object = 600,
        settings: object = "",
    ) -> None:
        try:
            self.card, *more = cards.targets(str(card), str(host))
        except simulate.SimulationError as error:
            raise ValueError(str(error)) from None
        if more:
            raise ValueError("give one card; for several, parametrize the test")
        self.way = Way.named(str(way))
        self.seconds = float(_count("seconds", seconds, 1))
        self.settings = str(settings)

    def problem(self, seen: Seen) -> str | None:
        """Says of a test that failed that memory ran out."""
        if not any(device.ooms for device in seen.devices):
            return None
        which = "".join(f"\n  {text}" for text in seen.oom_texts[:10])
        return (
            f"Test does not fit {self.card.name} ({self.way.value}): it ran out of GPU "
            f"memory{which}"
        )


Check = FitsCuda | LimitMemory | LimitLeaks | StablePeak | NoOom | NoWorseMetric


# ---- From a marker to a check


def _size(value: object) -> int:
    """A size as pytest-memray reads it: 1 KB is 1024 bytes, and a unit is needed."""
    if isinstance(value, str) and value.strip().isdigit() and value.strip() != "0":
        raise ValueError(f"{value!r} has no unit; write it as '{value.strip()} MiB'")
    return parse_size(value, binary=True)  # type: ignore[arg-type]  # it checks


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} is not a number of at least {least}")
    return value


_KINDS: dict[str, type[Check]] = {
    FITS: FitsCuda,
    "limit_cuda_memory": LimitMemory,
    "limit_cuda_leaks": LimitLeaks,
    "stable_cuda_peak": StablePeak,
    "no_cuda_oom": NoOom,
    "no_worse_metric": NoWorseMetric,
}
assert _KINDS.keys() == MARKERS.keys()


def _parse(item: pytest.Item, mark: pytest.Mark) -> Check:
    kind: Callable[..., Check] = _KINDS[mark.name]
    try:
        bound = inspect.signature(kind).bind(*mark.args, **mark.kwargs)
        return kind(*bound.args, **bound.kwargs)
    except (TypeError, ValueError) as error:
        given = [*map(repr, mark.args), *(f"{k}={v!r}" for k, v in mark.kwargs.items())]
        text = f"{item.nodeid}: {mark.name}({', '.join(given)}): {error}"
        raise MarkerError(text) from None


def checks_of(item: pytest.Item) -> list[Check]:
    """What the markers of a test demand; of equal markers the nearest counts.

    Raises:
        MarkerError: A marker makes no sense.
    """
    if CHECKS in item.stash:
        return item.stash[CHECKS]
    found: dict[object, Check] = {}
    for mark in item.iter_markers():  # the nearest first
        if mark.name not in _KINDS:
            continue
        check = _parse(item, mark)
        name = check.name if isinstance(check, NoWorseMetric) else None
        found.setdefault((mark.name, name), check)
        if name and FIXTURE not in getattr(item, "fixturenames", ()):
            raise MarkerError(
                f"{item.nodeid}: {mark.name} needs the fixture {FIXTURE}, so that the "
                f"test can report: {FIXTURE}.metric({name!r}, value)"
            )
    item.stash[CHECKS] = list(found.values())
    return item.stash[CHECKS]
