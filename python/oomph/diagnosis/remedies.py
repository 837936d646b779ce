"""What would save memory in this program, how much, and at what cost.

Where the step that ran out of memory can run again without memory (``forecast``), each
remedy is tried on it, and what it saves is what that run saved. Elsewhere the numbers
are estimates from the blocks that are there, and whether one is enough is not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from oomph.base import log
from oomph.base.sizes import format_size
from oomph.diagnosis.categories import Category
from oomph.diagnosis.remedy import (
    AUTOCAST,
    EIGHT_BITS,
    HALVES,
    HOST_TABLES,
    ROW_WISE,
    SPARSE,
    Context,
    Remedy,
    fused,
)
from oomph.diagnosis.trials import tried
from oomph.diagnosis.wording import OFFLOAD

MIN_SHARE = 0.01  # of the memory held: less is no help
SENT = 1.5  # times what is missing, at the most, lies on the host
DATA = 0.4  # of all that is held are inputs and other tensors


def rank(context: Context) -> list[Remedy]:
    """All that help here: first those that are enough, then those that save most.

    What errors keep comes before: it costs nothing to let go of it.
    """
    least = MIN_SHARE * (sum(context.totals.values()) + context.requested_bytes)
    found = [*tried(context)] if context.forecast else [*_estimated(context)]
    found += [remedy for rule in ALWAYS for remedy in rule(context)]
    found.sort(key=lambda r: (not r.enough, -r.saves_bytes))
    found = [*_kept_errors(context), *found]
    found = [r for r in found if r.enough or r.saves_bytes > least]
    if not context.requested_bytes:
        found = [dataclasses.replace(r, enough=None) for r in found]
    return found


# ---- Estimated from what is there


def _estimated(now: Context) -> Iterator[Remedy]:
    program, held = now.breakdown.program, now.totals
    is_evaluation = program.training is False and not now.in_backward
    if is_evaluation and now.saves_for_backward:
        yield now.guess(
            "torch.no_grad() around evaluation, as no module is in training mode",
            "nothing",
            held[Category.ACTIVATION],
        )
    if now.saves_for_backward and not now.autocast and not program.has_halves:
        yield now.guess(*AUTOCAST, int(held[Category.ACTIVATION] * 0.4))
    if program.unfused and program.temporary_bytes and now.in_optimizer:
        yield now.guess(*fused(program.unfused), program.temporary_bytes)
    if held[Category.OPTIMIZER]:
        yield now.guess(*EIGHT_BITS, int(held[Category.OPTIMIZER] * 0.75))
    if now.keeps_floats:
        yield now.guess(*HALVES, program.wide_bytes // 2)
    if now.trains_tables:
        tables = program.table_bytes
        gradients = min(held[Category.GRADIENT], tables)
        states = int(held[Category.OPTIMIZER] * tables / held[Category.PARAMETER])
        yield now.guess(*HOST_TABLES, tables + gradients + states)
        yield now.guess(*ROW_WISE, gradients + states)
        yield now.guess(*SPARSE, gradients)


# ---- Whether a step was seen or not


def _kept_errors(now: Context) -> Iterator[Remedy]:
    """Steps that failed before, held by their errors."""
    for errors in now.breakdown.errors:
        action, saves = errors.action, errors.size_bytes
        cost = "nothing: str(error) has its text"
        if now.forecast is None:
            yield now.guess(action, cost, saves)
        else:
            enough = now.forecast.fits(now.forecast.peak.plus(-saves))
            yield Remedy(action, saves, cost, enough)


def _leaks(now: Context) -> Iterator[Remedy]:
    """What a watch has found to grow, in each of the steps watched."""
    if log.leaks_found is None:
        return
    found = log.leaks_found()
    for finding in found.findings:
        if finding.device == now.breakdown.blocks.device and finding.line:
            leaked = min(finding.growth_bytes * found.steps, sum(now.totals.values()))
            where = f"{Path(finding.line.file).name}:{finding.line.line}"
            action = f"fixing the leak: {finding.verdict} at {where}"
            yield now.guess(action, "nothing", leaked)


def _data(now: Context) -> Iterator[Remedy]:
    """What was brought before it is needed, such as a whole data set."""
    held = sum(now.totals.values()) + now.requested_bytes
    data = now.totals[Category.INPUT]
    if now.brings_data:
        data += now.requested_bytes
    if data > DATA * held:
        yield now.guess(
            "keeping inputs and other tensors on the CPU until they are used, batch by "
            "batch",
            "one copy per batch; pinned memory and non_blocking=True hide it",
            data,
        )


def _buckets(now: Context) -> Iterator[Remedy]:
    """Gradients beside copies of them, which other processes get."""
    if now.breakdown.program.copies_gradients:
        yield now.guess(
            "DistributedDataParallel(..., gradient_as_bucket_view=True)",
            "nothing; gradients are then views of its buckets",
            now.totals[Category.BUCKET],
        )


def _sharding(now: Context) -> Iterator[Remedy]:
    """Parameters, gradients and states over all devices of the machine."""
    count = now.device_count
    if count > 1 and not now.breakdown.program.is_sharded:
        yield now.guess(
            f"FSDP (ZeRO-3) over the {count} devices",
            "parameters are sent between devices in each pass",
            int(now.state_bytes * (1 - 1 / count)),
        )


def _offload(now: Context) -> Iterator[Remedy]:
    """The missing bytes and no more: what oomph does where it is allowed to."""
    missing = now.wanted_bytes
    speed = now.stats["link_to_device_bytes_per_s"]
    limit = now.stats["host_limit_bytes"]
    if not missing or (limit and missing > limit and "host_limit" not in now.refusal):
        return
    each = f", about {missing / speed * 1e3:.0f} ms each" if speed > 0 else ""
    cost = f"{format_size(missing)} copied to CPU memory and back{each}"
    if now.offload == "off":
        action = OFFLOAD
    elif "strict" in now.refusal:
        action = "oomph without strict"
    elif "host_limit" in now.refusal:
        wanted = now.stats["host_bytes"] + max(now.requested_bytes, missing)
        action = f"oomph's host_limit: at least {format_size(wanted)}"
    else:
        return
    fits = now.forecast is not None and now.forecast.is_all_known
    has_room = not limit or SENT * missing <= limit or "host_limit" in now.refusal
    yield Remedy(action, missing, cost, True if fits and has_room else None)


ALWAYS: tuple[Callable[[Context], Iterator[Remedy]], ...] = (
    _leaks,
    _data,
    _buckets,
    _sharding,
    _offload,
)
