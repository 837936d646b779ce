"""What would save memory in this program, how much, and at what cost.

Where the step that ran out of memory can run again without memory (``forecast``), each
remedy is tried on it, and what it saves is what that run saved. Elsewhere the figures
are estimates from the blocks that are there, and whether one is enough is not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomph.base import log
from oomph.base.sizes import format_size
from oomph.diagnosis.categories import Breakdown, Category
from oomph.diagnosis.forecast import Forecast

if TYPE_CHECKING:
    from oomph.replay.step import Change

MIN_SHARE = 0.01  # of the memory held: less is no help
UNITS_TRIED = 3  # classes of modules whose calls are run again
SHRINKS = 0.85  # of the peak: what half a batch must at least come down to
GROWS = 1 << 20  # bytes that each turn leaves behind, from which on it is told
TABLES = 0.5  # of the parameters are in embeddings


@dataclass(frozen=True)
class Remedy:
    """One way to save memory, as estimated for this program.

    Attributes:
        action: What to do, in a few words.
        saves_bytes: Bytes that it saves on this device at the step's peak; if that was
            not predicted, at the moment looked at.
        cost: What it costs, in words.
        enough: Whether a whole step fits with it alone; None: that is not known, or
            nothing is missing.
    """

    action: str
    saves_bytes: int
    cost: str
    enough: bool | None = None


@dataclass(frozen=True)
class Context:
    """What the rules look at.

    Attributes:
        breakdown: Who holds the memory.
        totals: Bytes of each category.
        stats: oomph's metrics of the device, as :func:`oomph.stats` has them.
        requested_bytes: Of the allocation that failed; 0: none did.
        missing_bytes: Bytes it was short of.
        forecast: What the step comes to; None: not predicted.
        in_optimizer: It failed in a step of an optimizer of PyTorch.
        autocast: Was on, or seems to be in use.
        device_count: Devices of this machine.
        offload: The setting.
        refusal: Why nothing was offloaded, as the error says it.
    """

    breakdown: Breakdown
    totals: dict[Category, int]
    stats: dict[str, int]
    requested_bytes: int
    missing_bytes: int
    forecast: Forecast | None
    in_optimizer: bool
    autocast: bool
    device_count: int
    offload: str
    refusal: str

    @property
    def wanted_bytes(self) -> int:
        """What is missing: of all that the step will want, where that is predicted."""
        if self.forecast is not None:
            return self.forecast.missing_bytes
        return self.missing_bytes

    @property
    def state_bytes(self) -> int:
        """What does not grow with the batch: parameters, gradients, states."""
        kept = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER)
        return sum(self.totals[category] for category in kept)

    @property
    def saves_for_backward(self) -> bool:
        """Whether forward is recorded."""
        return self.totals[Category.ACTIVATION] > 0


def rank(context: Context) -> list[Remedy]:
    """All that help here: first those that are enough, then those that save most."""
    least = MIN_SHARE * (sum(context.totals.values()) + context.requested_bytes)
    found = [*_tried(context)] if context.forecast else [*_estimated(context)]
    found += [remedy for rule in ALWAYS for remedy in rule(context)]
    found = [r for r in found if r.enough or r.saves_bytes > least]
    if not context.requested_bytes:
        found = [dataclasses.replace(r, enough=None) for r in found]
    return sorted(found, key=lambda r: (not r.enough, -r.saves_bytes))


# ---- Tried on the step


@dataclass
class _Trials:
    """Remedies as the step ran with them."""

    forecast: Forecast
    found: list[tuple[Remedy, Change]] = field(default_factory=list)

    def attempt(self, action: str, cost: str, change: Change) -> Remedy | None:
        """Runs the step with a change; None if it does not run, or saves nothing."""
        peak = self.forecast.peak_with(change)
        if peak is None or peak >= self.forecast.peak_bytes:
            return None
        remedy = self.said(action, cost, peak)
        self.found.append((remedy, change))
        return remedy

    def said(self, action: str, cost: str, peak_bytes: int) -> Remedy:
        """A remedy that leaves the step such a peak."""
        saves = self.forecast.peak_bytes - peak_bytes
        return Remedy(action, saves, cost, self.forecast.fits(peak_bytes))


def _tried(now: Context) -> Iterator[Remedy]:
    assert now.forecast is not None
    trials = _Trials(now.forecast)
    now.forecast.attempt(_first_changes(now, now.forecast))
    for rule in (_no_gradients, _smaller_batch, _autocast, _checkpointing, _both):
        rule(now, trials)
    yield from (remedy for remedy, _ in trials.found)
    yield from _chunked_loss(trials)
    yield from _smaller_state(now, trials)
    yield from _growing(now.forecast)


def _first_changes(now: Context, forecast: Forecast) -> list[Change]:
    """All whose outcome is wanted in any case, to be run together."""
    from oomph.replay.step import Change

    batches = forecast.search.batches(forecast.outcome)[:1]
    return [
        *(Change(batch=(batch, batch // 2)) for batch in batches),
        *(Change(checkpoint=tuple(unit["modules"])) for unit in _units(forecast)),
        *([Change(autocast=True)] if _may_autocast(now, forecast) else []),
    ]


def _no_gradients(now: Context, trials: _Trials) -> None:
    """Where forward is recorded, and nothing goes back through it."""
    from oomph.replay.step import Change

    if now.forecast is None or not now.saves_for_backward:
        return
    if not now.forecast.outcome.raw["backwards"]:
        action = "torch.no_grad() around evaluation"
        trials.attempt(action, "nothing: there is no backward", Change(every_call_silent=True))
        return
    for name, modules in now.breakdown.program.untrained:
        trials.attempt(
            f"torch.no_grad() around the calls of {name}, which no optimizer trains",
            "nothing, if no gradient is to pass it",
            Change(no_grad=tuple(modules)),
        )


def _smaller_batch(now: Context, trials: _Trials) -> None:
    """As few parts as are enough, or one sample at a time."""
    from oomph.replay.step import Change

    forecast = trials.forecast
    for batch in forecast.search.batches(forecast.outcome):
        half = forecast.peak_with(Change(batch=(batch, batch // 2)))
        beside = forecast.peak_bytes - forecast.base_bytes
        if half is None or half - forecast.base_bytes > SHRINKS * beside:
            continue
        sample = 2 * (forecast.peak_bytes - half) / batch
        wanted = batch // 2
        while wanted > 1 and forecast.peak_bytes - sample * (
            batch - wanted
        ) > forecast.room_bytes * (1 - 0.01):
            wanted //= 2
        while wanted >= 1:
            change = Change(batch=(batch, wanted))
            remedy = trials.attempt(*_batch_words(forecast, batch, wanted), change)
            if remedy is None or remedy.enough:
                break
            del trials.found[-1 if wanted > 1 else len(trials.found) :]
            wanted //= 2
        return


def _batch_words(forecast: Forecast, batch: int, wanted: int) -> tuple[str, str]:
    from oomph.replay.step import Change

    raw = forecast.outcome.raw
    action = f"batch {batch} -> {wanted}"
    if not raw["backwards"]:
        return action, "more, smaller batches"
    action += f", accumulating gradients over {-(-batch // wanted)}"
    half = forecast.outcome_with(Change(batch=(batch, batch // 2)))
    squares = set(half.raw["squares"]) - set(raw["squares"]) if half else set()
    compares = any(n in raw["squares"] and n // 2 in squares for n in (batch, 2 * batch))
    if compares:
        return action, "the loss compares samples with each other, so it changes"
    return action, "about the same time per step"


def _autocast(now: Context, trials: _Trials) -> None:
    """Products with 16 bits; norms and losses stay as they are."""
    from oomph.replay.step import Change

    if _may_autocast(now, trials.forecast):
        trials.attempt(
            "torch.autocast('cuda', torch.bfloat16)",
            "matrix products are rounded to 8 bits; usually faster",
            Change(autocast=True),
        )


def _may_autocast(now: Context, forecast: Forecast) -> bool:
    halves = any(size == 2 for _, size in now.breakdown.program.parameter_shapes)
    trains = bool(forecast.outcome.raw["backwards"])
    return trains and not now.autocast and not halves


def _units(forecast: Forecast) -> list[dict[str, Any]]:
    """Classes of modules whose calls save most, in a step that goes back."""
    raw = forecast.outcome.raw
    if not raw["backwards"]:
        return []
    units = [c for c in raw["calls"] if len(c["modules"]) > 1 and c["parts"]]
    return units[:UNITS_TRIED]


def _checkpointing(now: Context, trials: _Trials) -> None:
    """Of the modules whose calls save much, those with which the peak is lowest."""
    from oomph.replay.step import Change

    tried = _Trials(trials.forecast)
    for unit in _units(trials.forecast):
        count, paths = len(unit["modules"]), ", ".join(unit["paths"][:3])
        where = f" ({paths})" if paths else ""
        tried.attempt(
            f"checkpointing the {count} {unit['class']} modules{where}",
            "their forward is computed twice, about a third of a step",
            Change(checkpoint=tuple(unit["modules"])),
        )
    if tried.found:
        trials.found.append(max(tried.found, key=lambda found: found[0].saves_bytes))


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
            if remedy is not None and remedy.enough:
                return


def _chunked_loss(trials: _Trials) -> Iterator[Remedy]:
    """Logits and what is made of them, one chunk of rows at a time."""
    from oomph.replay.step import CHUNKS

    shape = trials.forecast.outcome.raw["without"]["logits"]
    if not shape:
        return
    rows = 1
    for size in shape[:-1]:
        rows *= size
    yield trials.said(
        f"the head and cross-entropy in {CHUNKS} chunks of the {rows} rows of logits, "
        "recomputed",
        "the head's matrix product is computed twice",
        trials.forecast.peak_without("chunked"),
    )


def _smaller_state(now: Context, trials: _Trials) -> Iterator[Remedy]:
    """A fused optimizer makes nothing beside its state; 8-bit states are a quarter."""
    forecast, program = trials.forecast, now.breakdown.program
    unfused = [n.rstrip("*") for n in program.optimizers if "*" in n]
    if unfused:
        action = f"{unfused[0]}(..., fused=True)"
        peak = forecast.peak_without("fused")
        yield trials.said(action, "nothing; it is faster", peak)
    state = now.totals[Category.OPTIMIZER]
    if state + forecast.outcome.raw["without"]["state_bytes"]:
        yield trials.said(
            "an optimizer with 8-bit states (bitsandbytes, torchao)",
            "rounded states, and another package",
            forecast.peak_without("state") - int(0.75 * state),
        )


def _growing(forecast: Forecast) -> Iterator[Remedy]:
    """What each turn of the loop leaves behind, and the next ones add to."""
    grows = forecast.outcome.grows_bytes
    if grows >= GROWS and not forecast.outcome.raw["backwards"]:
        yield Remedy(
            f".cpu() of what the loop keeps, {format_size(grows)} each turn",
            grows,
            "a copy each turn",
            enough=None,
        )


# ---- Estimated from what is there


def _estimated(now: Context) -> Iterator[Remedy]:
    program = now.breakdown.program
    if program.training is False and now.saves_for_backward:
        yield _guess(
            now,
            "torch.no_grad() around evaluation, as no module is in training mode",
            now.totals[Category.ACTIVATION],
            "nothing",
        )
    halves = any(size == 2 for _, size in program.parameter_shapes)
    if now.saves_for_backward and not now.autocast and not halves:
        yield _guess(
            now,
            "torch.autocast('cuda', torch.bfloat16)",
            int(now.totals[Category.ACTIVATION] * 0.4),
            "matrix products are rounded to 8 bits; usually faster",
        )
    unfused = [n.rstrip("*") for n in program.optimizers if "*" in n]
    if unfused and program.temporary_bytes and now.in_optimizer:
        action = f"{unfused[0]}(..., fused=True)"
        yield _guess(now, action, program.temporary_bytes, "nothing; it is faster")
    if now.totals[Category.OPTIMIZER]:
        yield _guess(
            now,
            "an optimizer with 8-bit states (bitsandbytes, torchao)",
            int(now.totals[Category.OPTIMIZER] * 0.75),
            "rounded states, and another package",
        )


def _guess(now: Context, action: str, saves_bytes: int, cost: str) -> Remedy:
    """Of which only that it is too little can be known."""
    return Remedy(
        action, saves_bytes, cost, False if saves_bytes < now.missing_bytes else None
    )


# ---- Whether a step was seen or not


def _leaks(now: Context) -> Iterator[Remedy]:
    """What a watch has found to grow, in each of the steps watched."""
    if log.leaks_found is None:
        return
    found = log.leaks_found()
    for finding in found.findings:
        if finding.device == now.breakdown.blocks.device and finding.line:
            leaked = min(
                finding.growth_bytes * found.steps, sum(now.totals.values())
            )
            yield _guess(
                now,
                f"fixing the leak: {finding.verdict} at "
                f"{Path(finding.line.file).name}:{finding.line.line}",
                leaked,
                "nothing",
            )


def _parameters(now: Context) -> Iterator[Remedy]:
    """Of a model that is not trained, half the bits; tables of one that is, elsewhere."""
    program = now.breakdown.program
    parameters = now.totals[Category.PARAMETER]
    wide = sum(b for s, b in program.parameter_sizes() if s == 4)
    if not program.optimizers and wide > parameters // 2:
        yield _guess(
            now,
            "parameters in bfloat16 (model.to(torch.bfloat16), or torch_dtype where it "
            "is loaded)",
            wide // 2,
            "rounded to 8 bits",
        )
    tables = program.table_bytes
    if program.optimizers and tables > TABLES * parameters:
        states = int(now.totals[Category.OPTIMIZER] * tables / max(1, parameters))
        yield _guess(
            now,
            "the embedding tables on the host, or sparse=True with SparseAdam",
            tables + states + min(now.totals[Category.GRADIENT], tables),
            "the rows of a batch cross the link",
        )


def _sharding(now: Context) -> Iterator[Remedy]:
    """Parameters, gradients and states over all devices of the machine."""
    count = now.device_count
    if count > 1:
        yield _guess(
            now,
            f"FSDP (ZeRO-3) over the {count} devices",
            int(now.state_bytes * (1 - 1 / count)),
            "parameters cross the link in each pass",
        )


def _offload(now: Context) -> Iterator[Remedy]:
    """The missing bytes and no more: what oomph does where it is allowed to."""
    missing = now.wanted_bytes
    speed = now.stats["link_to_device_bytes_per_s"]
    limit = now.stats["host_limit_bytes"]
    if not missing or (limit and missing > limit and "host_limit" not in now.refusal):
        return
    each = f", about {missing / speed * 1e3:.0f} ms each" if speed > 0 else ""
    cost = f"{format_size(missing)} cross the link, once out and once back{each}"
    if now.offload == "off":
        action = "oomph's offload:on-oom"
    elif "strict" in now.refusal:
        action = "oomph without strict"
    elif "host_limit" in now.refusal:
        wanted = now.stats["host_bytes"] + max(now.requested_bytes, missing)
        action = f"oomph's host_limit: at least {format_size(wanted)}"
    else:
        return
    yield Remedy(action, missing, cost, True if now.forecast else None)


ALWAYS: tuple[Callable[[Context], Iterator[Remedy]], ...] = (
    _leaks,
    _parameters,
    _sharding,
    _offload,
)
