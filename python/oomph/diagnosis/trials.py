"""Remedies that are tried on the step that ran out of memory.

Each is what a person would change in the program. The step runs again with it
(``forecast``), and what that run saves is what the remedy saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oomph.diagnosis.forecast import Forecast
from oomph.diagnosis.remedy import (
    AUTOCAST,
    HALVES,
    Context,
    Remedy,
)
from oomph.diagnosis.smaller import ALIKE, smaller

if TYPE_CHECKING:
    from oomph.replay.change import Change

UNITS_TRIED = 3  # classes of modules whose calls are run again
SHRINKS = 0.85  # of the peak: what half a batch must at least come down to


@dataclass
class _Trials:
    """Remedies as the step ran with them."""

    forecast: Forecast
    found: list[tuple[Remedy, Change]] = field(default_factory=list)

    def attempt(self, action: str, cost: str, change: Change) -> Remedy | None:
        """Runs the step with a change; None if it does not run, or saves nothing."""
        peak = self.forecast.peak_with(change)
        if peak is None or peak.most >= self.forecast.peak_bytes:
            return None
        saves = self.forecast.peak_bytes - peak.most
        outcome = self.forecast.outcome_with(change)
        enough = self.forecast.fits(peak, outcome, change)
        remedy = Remedy(action, saves, cost, enough)
        self.found.append((remedy, change))
        return remedy


def tried(now: Context) -> Iterator[Remedy]:
    """All that help, as the step ran with them; it must have run again."""
    assert now.forecast is not None
    trials = _Trials(now.forecast)
    now.forecast.attempt(_first_changes(now, now.forecast))
    for rule in (_no_gradients, _smaller_batch, _autocast, _checkpointing, _halves):
        rule(now, trials)
    _both(now, trials)
    yield from (_as_mild(trials.forecast, *found) for found in trials.found)
    yield from smaller(now, now.forecast)


def _first_changes(now: Context, forecast: Forecast) -> list[Change]:
    """All whose outcome is wanted in any case, to be run together."""
    from oomph.replay.change import Change

    batches = forecast.batches()[:1]
    return [
        *(Change(batch=(size, size // 2, dim)) for size, dim in batches),
        *(change for _, change, _ in _recomputed(forecast)),
        *([Change(autocast=True)] if _may_autocast(now, forecast) else []),
        *([Change(halves=True)] if _may_halve(now, forecast) else []),
    ]


def _no_gradients(now: Context, trials: _Trials) -> None:
    """Where forward is recorded, and nothing goes back through it."""
    from oomph.replay.change import Change

    if now.forecast is None or not now.saves_for_backward:
        return
    if not now.forecast.outcome.raw["backwards"]:
        if now.in_backward:  # what was seen is but the forward part of a step
            return
        action, cost = "torch.no_grad() around evaluation", "nothing"
        trials.attempt(action, cost, Change(every_call_silent=True))
        return
    for name, modules in now.breakdown.program.untrained:
        trials.attempt(
            f"torch.no_grad() around the calls of {name}, which no optimizer trains",
            "nothing, unless a layer before it is trained",
            Change(no_grad=tuple(modules)),
        )


def _smaller_batch(now: Context, trials: _Trials) -> None:
    """As few parts as are enough, or one sample at a time."""
    from oomph.replay.change import Change

    forecast = trials.forecast
    for batch, dim in forecast.batches():
        halved = Change(batch=(batch, batch // 2, dim))
        half = forecast.peak_with(halved)
        beside = forecast.peak_bytes - forecast.base_bytes
        if half is None or half.most - forecast.base_bytes > SHRINKS * beside:
            continue
        if not forecast.outcome.raw["called"] and _compares(forecast, halved):
            continue
        sample = 2 * (forecast.peak_bytes - half.most) / batch
        wanted = batch // 2
        while wanted > 1 and forecast.peak_bytes - sample * (
            batch - wanted
        ) > forecast.room_bytes * (1 - 0.01):
            wanted //= 2
        while wanted >= 1:
            change = Change(batch=(batch, wanted, dim))
            words = _batch_words(forecast, batch, wanted, halved)
            remedy = trials.attempt(*words, change)
            if remedy is None or remedy.enough is not False:
                break
            if wanted > 1:
                trials.found.pop()
            wanted //= 2
        return


def _as_mild(forecast: Forecast, remedy: Remedy, change: Change) -> Remedy:
    """In place of a smaller batch that is not enough: the largest that saves alike.

    What holds the peak then is of another size than the batch, such as an optimizer's.
    """
    from oomph.replay.change import Change

    alone = change == Change(batch=change.batch)
    if change.batch is None or not alone or remedy.enough is not False:
        return remedy
    batch, wanted, dim = change.batch
    halved = Change(batch=(batch, batch // 2, dim))
    half = forecast.peak_with(halved)
    wanted_bytes = remedy.saves_bytes - ALIKE * forecast.peak_bytes
    size = batch // 2
    while half is not None and size > wanted:
        expected = (forecast.peak_bytes - half.most) * (batch - size) / (batch // 2)
        milder = Change(batch=(batch, size, dim))
        words = _batch_words(forecast, batch, size, halved)
        if expected >= wanted_bytes:
            found = _Trials(forecast).attempt(*words, milder)
            if found is not None and found.saves_bytes >= wanted_bytes:
                return found
        size //= 2
    return remedy


def _batch_words(
    forecast: Forecast, batch: int, wanted: int, halved: Change
) -> tuple[str, str]:
    raw = forecast.outcome.raw
    action = f"batch {batch} -> {wanted}"
    if not raw["called"]:  # what no model is given need not be a batch
        action = f"{wanted} of the {batch} rows at a time"
        return action, "the loop, or one within it, takes more iterations"
    if not raw["backwards"]:
        return action, "more, smaller batches"
    action += f", accumulating gradients over {-(-batch // wanted)}"
    if _compares(forecast, halved):
        return action, "the loss compares samples with each other, so it changes"
    return action, (
        "the same gradients (except with BatchNorm), one optimizer.step() for all "
        "parts; slower if the parts are small"
    )


def _compares(forecast: Forecast, halved: Change) -> bool:
    """Whether samples are compared with each other: all, or those of two views."""
    assert halved.batch is not None
    batch, raw = halved.batch[0], forecast.outcome.raw
    half = forecast.outcome_with(halved)
    squares = set(half.raw["squares"]) - set(raw["squares"]) if half else set()
    return any(n in raw["squares"] and n // 2 in squares for n in (batch, 2 * batch))


def _autocast(now: Context, trials: _Trials) -> None:
    """Products with 16 bits; norms and losses stay as they are."""
    from oomph.replay.change import Change

    if _may_autocast(now, trials.forecast):
        trials.attempt(*AUTOCAST, Change(autocast=True))


def _halves(now: Context, trials: _Trials) -> None:
    """Parameters of 16 bits, and what is computed with them."""
    from oomph.replay.change import Change

    change = Change(halves=True)
    if not _may_halve(now, trials.forecast):
        return
    if trials.forecast.outcome_with(change) is None:  # such as of networks of cuDNN
        wide_bytes = now.breakdown.program.wide_bytes
        trials.found.append((now.guess(*HALVES, wide_bytes // 2), change))
    trials.attempt(*HALVES, change)


def _may_halve(now: Context, forecast: Forecast) -> bool:
    return now.keeps_floats and not forecast.outcome.raw["backwards"]


def _may_autocast(now: Context, forecast: Forecast) -> bool:
    trains = bool(forecast.outcome.raw["backwards"])
    return trains and not now.autocast and not now.breakdown.program.has_halves


def _units(forecast: Forecast) -> list[dict[str, Any]]:
    """Classes of modules whose calls save most."""
    units = [
        c
        for c in forecast.outcome.raw["calls"]
        if len(c["modules"]) > 1 and c["parts"] and not c["nested"]
    ]
    return sorted(units, key=lambda unit: unit["plain"])[:UNITS_TRIED]


def _recomputed(forecast: Forecast) -> Iterator[tuple[str, Change, bool]]:
    """What may run again in backward, and whether the program has given it a name."""
    from oomph.replay.change import Change

    if not forecast.outcome.raw["backwards"] or forecast.is_in_function:
        return
    for unit in _units(forecast):
        count, paths = len(unit["modules"]), ", ".join(unit["paths"][:3])
        where = f" ({paths})" if paths else ""
        action = f"checkpointing the {count} {unit['class']} modules{where}"
        yield action, Change(checkpoint=tuple(unit["modules"])), not unit["plain"]
    sequence = forecast.outcome.raw["sequence"]
    for cuts, is_even in sequence.get("cuts", ()):
        path, count = sequence["path"], len(cuts) + 1
        action = f"checkpoint_sequential({path}, {count}, ...)"
        if not is_even:
            at = ", ".join(map(str, cuts))
            where, which = f"layers {at}", "none of which works in place"
            if len(cuts) == 1:
                where, which = f"layer {at}", "which does not work in place"
            action = f"checkpointing {path} in {count} parts, cut before {where}, "
            action += which
        yield action, Change(segments=(sequence["module"], *cuts)), True


def _checkpointing(now: Context, trials: _Trials) -> None:
    """Of the modules whose calls save much, those with which the peak is lowest.

    If several are enough, rather such as the program itself has given a name.
    """
    tried = _Trials(trials.forecast)
    ranks: dict[str, tuple[bool, bool, int]] = {}
    for action, change, is_named in _recomputed(trials.forecast):
        cost = "torch.utils.checkpoint runs their forward twice: about a third slower"
        remedy = tried.attempt(action, cost, change)
        if remedy is not None:
            named = bool(remedy.enough) and is_named
            ranks[action] = bool(remedy.enough), named, remedy.saves_bytes
    if tried.found:
        trials.found.append(max(tried.found, key=lambda found: ranks[found[0].action]))


def _both(now: Context, trials: _Trials) -> None:
    """Two of them, where none is enough."""
    if any(remedy.enough for remedy, _ in trials.found):
        return
    best = sorted(trials.found, key=lambda found: -found[0].saves_bytes)[:3]
    for i, (first, one) in enumerate(best):
        for second, other in best[i + 1 :]:
            action = f"{first.action}, and {second.action}"
            cost = f"{first.cost}; {second.cost}"
            remedy = trials.attempt(action, cost, one.joined(other))
            if remedy is None:
                continue
            if remedy.enough:
                return
            more_bytes = remedy.saves_bytes - first.saves_bytes
            if more_bytes < ALIKE * trials.forecast.peak_bytes:
                trials.found.pop()
