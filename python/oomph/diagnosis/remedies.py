"""What would save memory in this program, how much, and at what cost.

Each rule looks at who holds the memory (``categories``) and gives remedies, or none
where it cannot help. Figures are estimates from the blocks that are there, and from
what the step would have come to (``forecast``); each rule says what it assumes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oomph.base import log
from oomph.base.sizes import format_size
from oomph.diagnosis.categories import Breakdown, Category
from oomph.diagnosis.forecast import (
    Forecast,
    Logits,
    find_logits,
    predict,
    saved_by_family,
)

MIN_SHARE = 0.01  # of the memory held: less is no help
CHUNKS = 8  # that the loss is cut into


@dataclass(frozen=True)
class Remedy:
    """One way to save memory, as estimated for this program.

    Attributes:
        action: What to do, in a few words.
        saves_bytes: Bytes that it saves on this device at the step's peak; if that was
            not predicted, at the moment looked at.
        cost: What it costs, in words.
        of_state_bytes: Of these, the bytes that it saves in the optimizer's step, too.
        enough: Whether it alone makes room for what is missing; None: nothing is
            missing.
    """

    action: str
    saves_bytes: int
    cost: str
    of_state_bytes: int = 0
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

    def with_forecast(self) -> Context:
        """The same, with what the step comes to, if that can be predicted."""
        trains = self.breakdown.program.training is not False
        if self.in_optimizer or not trains or not self.saves_for_backward:
            return self
        asked = self.requested_bytes, self.missing_bytes
        forecast = predict(self.breakdown, self.logits, *asked)
        return dataclasses.replace(self, forecast=forecast)

    @property
    def wanted_bytes(self) -> int:
        """What is missing, of all that the step will want, where that is predicted."""
        if self.forecast is not None:
            return self.forecast.missing_bytes
        program = self.breakdown.program
        coming = program.coming_bytes + program.first_step_bytes
        if self.in_optimizer:
            made = self.totals[Category.TEMPORARY]
            made += self.requested_bytes if not coming else 0  # else it is for state
            coming += max(0, program.temporary_bytes - made)
        return self.missing_bytes + coming if self.missing_bytes else 0

    @property
    def saved_bytes(self) -> int:
        """What is saved for backward, without the loss where the step is predicted."""
        if self.forecast is not None:
            return self.forecast.activation_bytes
        return self.totals[Category.ACTIVATION]

    @property
    def activation_bytes(self) -> int:
        """What grows with the batch: saved, on its way, or asked for."""
        inputs = self.totals[Category.INPUT]
        if self.forecast is not None:
            return self.saved_bytes + self.forecast.loss_bytes + inputs
        asked = 0 if self.in_optimizer else self.requested_bytes
        return self.saved_bytes + self.totals[Category.TEMPORARY] + inputs + asked

    @property
    def state_bytes(self) -> int:
        """What does not: parameters, gradients, the optimizer's state."""
        kept = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER)
        return sum(self.totals[category] for category in kept)

    @property
    def saves_for_backward(self) -> bool:
        """Whether forward is recorded."""
        return self.totals[Category.ACTIVATION] > 0

    @functools.cached_property
    def logits(self) -> Logits | None:
        """Those of tokens, if the program has such."""
        return find_logits(self.breakdown, self.requested_bytes, self.autocast)


def rank(context: Context) -> list[Remedy]:
    """All that help here, those that save most first."""
    least = MIN_SHARE * (sum(context.totals.values()) + context.requested_bytes)
    all_of_them = (
        dataclasses.replace(remedy, enough=_is_enough(remedy, context))
        for rule in RULES
        for remedy in rule(context)
    )
    found = [r for r in all_of_them if r.enough or r.saves_bytes > least]
    return sorted(found, key=lambda r: r.saves_bytes, reverse=True)


def _is_enough(remedy: Remedy, now: Context) -> bool | None:
    if not now.wanted_bytes:
        return None
    in_step = now.forecast.step_missing_bytes if now.forecast else 0
    return remedy.saves_bytes >= now.wanted_bytes and remedy.of_state_bytes >= in_step


# ---- Rules


def _leaks(now: Context) -> Iterator[Remedy]:
    """What a watch has found to grow, in each of the steps watched."""
    if log.leaks_found is None:
        return
    found = log.leaks_found()
    for finding in found.findings:
        if finding.device == now.breakdown.blocks.device and finding.line:
            grown = finding.growth_bytes * found.steps
            leaked = min(grown, sum(now.totals.values()))
            yield Remedy(
                f"fixing the leak: {finding.verdict} at "
                f"{Path(finding.line.file).name}:{finding.line.line}",
                leaked,
                "nothing",
                of_state_bytes=leaked,
            )


def _no_gradients(now: Context) -> Iterator[Remedy]:
    """Evaluation that records forward keeps what only backward would need."""
    if now.breakdown.program.training is False and now.saves_for_backward:
        yield Remedy(
            "torch.no_grad() around evaluation, as no module is in training mode",
            now.totals[Category.ACTIVATION],
            "nothing",
        )


def _smaller_batch(now: Context) -> Iterator[Remedy]:
    """Everything but parameters, gradients and states shrinks with the batch."""
    remedy = _parts_of_batch(now, now.activation_bytes)
    if remedy is not None:
        yield remedy


def _parts_of_batch(now: Context, grows: int, saved: int = 0) -> Remedy | None:
    """The batch in as few parts as are enough, or one sample at a time.

    From the second part of a batch on, the gradients of the first are there, and each
    new one beside them until it is added.

    Args:
        now: What to look at.
        grows: Bytes that grow with the batch.
        saved: What something else saves beside it.
    """
    program = now.breakdown.program
    batch = program.batch()
    if batch < 2 or now.in_optimizer:
        return None
    held = now.totals[Category.GRADIENT]
    trains = now.saves_for_backward or held > 0
    stays = max(0, program.trained_bytes - held) + program.largest_parameter_bytes()

    def saves(parts: int) -> int:
        return saved + int(grows * (1 - 1 / parts)) - (stays if trains else 0)

    parts = 2
    while saves(parts) < now.wanted_bytes and parts * 2 <= batch:
        parts *= 2
    return Remedy(
        f"batch {batch} -> {batch // parts}"
        + (f", accumulating gradients over {parts}" if trains else ""),
        saves(parts),
        "about the same time per step" if trains else "more, smaller batches",
    )


def _autocast(now: Context) -> Iterator[Remedy]:
    """Half of what is saved in 32 bits; norms and losses stay as they are."""
    if now.autocast or not now.saves_for_backward:
        return
    if any(size == 2 for _, size in now.breakdown.program.parameter_shapes):
        return
    yield Remedy(
        "torch.autocast('cuda', torch.bfloat16)",
        int(now.saved_bytes * 0.4),
        "matrix products are rounded to 8 bits; usually faster",
    )


def _checkpointing(now: Context) -> Iterator[Remedy]:
    """Of each block its input stays, and one block's activations come back at a time.

    The input is as large as what the blocks save most often.
    """
    saved = (
        now.forecast.saved
        if now.forecast is not None
        else saved_by_family(now.breakdown, now.logits)
    )
    for entry in saved:
        family = entry.family
        one = entry.size_bytes // family.count
        yield Remedy(
            f"checkpointing the {family.count} {family.name} modules",
            entry.size_bytes - entry.input_bytes - one,
            "their forward is computed twice, about a third of a step",
        )


def _checkpointed_parts(now: Context) -> Iterator[Remedy]:
    """Both, where neither is enough."""
    alone = [*_checkpointing(now), *_smaller_batch(now)]
    if len(alone) < 2 or max(r.saves_bytes for r in alone) >= now.wanted_bytes:
        return
    first = max(alone[:-1], key=lambda remedy: remedy.saves_bytes)
    saved = max(0, first.saves_bytes)
    both = _parts_of_batch(now, now.activation_bytes - saved, saved)
    if both is not None:
        yield Remedy(f"{first.action}, and {both.action}", both.saves_bytes, first.cost)


def _sequential(now: Context) -> Iterator[Remedy]:
    """Of n modules in s segments stay s inputs, and one segment comes back."""
    count = now.breakdown.program.sequential
    segments = math.isqrt(count)
    if count < 4 or now.breakdown.program.families:
        return
    saved = now.totals[Category.ACTIVATION]
    yield Remedy(
        f"checkpoint_sequential() with {segments} segments",
        int(saved * (1 - 1 / segments - segments / count)),
        "forward is computed twice, about a third of a step",
    )


def _chunked_loss(now: Context) -> Iterator[Remedy]:
    """Logits and what is made of them, one chunk of rows at a time.

    The gradient of the head is there from the first chunk on, and another beside it
    until it is added.
    """
    logits = now.logits
    if logits is None:
        return
    large = {logits.count * 2, logits.count * 4}
    sizes = [*now.breakdown.blocks.sizes, now.requested_bytes]
    there = sum(size for size in sizes if size in large)
    bytes_of_logits, stays = there, 0
    if now.forecast is not None:
        bytes_of_logits = now.forecast.loss_bytes
        stays = 2 * now.breakdown.program.largest_parameter_bytes(logits.columns)
    yield Remedy(
        f"cross-entropy in {CHUNKS} chunks of the {logits.rows} rows of logits, "
        "recomputed",
        int(bytes_of_logits * (1 - 1 / CHUNKS)) - stays,
        "the head's matrix product is computed twice",
    )


def _optimizer(now: Context) -> Iterator[Remedy]:
    """Temporaries of a step go with a fused one; 8-bit states take a quarter."""
    program = now.breakdown.program
    unfused = [n.rstrip("*") for n in program.optimizers if "*" in n]
    falls_short = now.forecast is not None and now.forecast.step_missing_bytes > 0
    if unfused and program.temporary_bytes and (now.in_optimizer or falls_short):
        yield Remedy(
            f"{unfused[0]}(..., fused=True)",
            program.temporary_bytes,
            "nothing; it is faster",
            of_state_bytes=program.temporary_bytes,
        )
    state = now.totals[Category.OPTIMIZER]
    if falls_short:
        state += program.coming_bytes + program.first_step_bytes
    if state:
        yield Remedy(
            "an optimizer with 8-bit states (bitsandbytes, torchao)",
            int(state * 0.75),
            "rounded states, and another package",
            of_state_bytes=int(state * 0.75),
        )


def _sharding(now: Context) -> Iterator[Remedy]:
    """Parameters, gradients and states over all devices of the machine."""
    count = now.device_count
    if count < 2:
        return
    yield Remedy(
        f"FSDP (ZeRO-3) over the {count} devices",
        int(now.state_bytes * (1 - 1 / count)),
        "parameters cross the link in each pass",
        of_state_bytes=int(
            max(now.state_bytes, now.forecast.step_bytes if now.forecast else 0)
            * (1 - 1 / count)
        ),
    )


def _offload(now: Context) -> Iterator[Remedy]:
    """The missing bytes and no more: what oomph does where it is allowed to."""
    missing = now.wanted_bytes
    if now.forecast is not None:
        missing = max(missing, now.forecast.step_missing_bytes)
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
    yield Remedy(action, missing, cost, of_state_bytes=missing)


RULES = (
    _leaks,
    _no_gradients,
    _smaller_batch,
    _autocast,
    _checkpointing,
    _checkpointed_parts,
    _sequential,
    _chunked_loss,
    _optimizer,
    _sharding,
    _offload,
)
