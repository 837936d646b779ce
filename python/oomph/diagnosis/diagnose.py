"""Finds out who holds the memory of a device, and what would help."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from traceback import walk_stack, walk_tb
from types import TracebackType
from typing import Any

from oomph import _C
from oomph.base import state
from oomph.base.sizes import format_size
from oomph.diagnosis import categories, processes, remedies
from oomph.diagnosis.brought import is_data
from oomph.diagnosis.categories import (
    TITLES,
    BlockList,
    Breakdown,
    Category,
)
from oomph.diagnosis.diagnosis import CategoryTotal, Diagnosis, Line
from oomph.diagnosis.forecast import Forecast, TimeUpError, predict
from oomph.diagnosis.remedy import Context
from oomph.diagnosis.request import place_of, request_of
from oomph.memory import sites
from oomph.memory.stats import stats


def explain(device: int | None = None) -> Diagnosis:
    """Says who holds the memory of a device now, and what would save how much.

    It looks at every object of Python: some tenths of a second in a large program. It
    takes no device memory and keeps no tensor alive. Unreachable objects count as
    garbage; it runs Python's collector, which frees them.

    Args:
        device: Index of the device; None: PyTorch's current one.

    Returns:
        The diagnosis; ``print()`` shows its text, ``as_dict()`` is for JSON.

    Raises:
        RuntimeError: oomph is not installed.
        ValueError: There is no such device.

    Example:
        >>> print(oomph.explain())
        GPU 0 has 12.00 GiB, held by:
        ...
    """
    if not state.is_installed():
        raise RuntimeError("oomph is not installed: call oomph.install() first")
    now = stats(device)
    if device is None:
        import torch

        device = torch.cuda.current_device()
    free_bytes, total_bytes = _C.memory_info(device)
    blocks, garbage = categories.sort_out(device)
    case = Case.look(
        {
            "device": device,
            "requested_bytes": 0,
            "site": 0,
            "doing": "",
            "message": "",
            "autocast": False,
            "grad": True,
            "free_bytes": free_bytes,
            "total_bytes": total_bytes,
            "stats": now,
        },
        blocks,
        None,
        garbage,
    )
    return case.diagnosis()


@dataclasses.dataclass(frozen=True)
class Case:
    """A moment, as far as it was looked at.

    Attributes:
        snapshot: As ``_C.take_oom()`` gives it.
        blocks: The blocks in use then.
        context: What rules look at.
    """

    snapshot: dict[str, Any]
    blocks: BlockList
    context: Context

    @classmethod
    def look(
        cls,
        snapshot: dict[str, Any],
        blocks: BlockList,
        alive: BlockList | None,
        garbage: frozenset[int],
    ) -> Case:
        """Finds out who holds the blocks.

        Args:
            snapshot: As ``_C.take_oom()`` gives it.
            blocks: The blocks in use then.
            alive: Those in use now; None: the same.
            garbage: Addresses of those that were garbage (``categories.sort_out``).
        """
        graph = snapshot["grad"] or bool(snapshot["doing"])
        seen = categories.look(blocks, alive, graph, garbage)
        return cls(snapshot, blocks, _context(snapshot, seen, _totals(seen)[0]))

    def with_forecast(self, traceback: TracebackType) -> Case:
        """The same, with what the whole step comes to, if that can be found out.

        Args:
            traceback: Of the error: the step is on its stack.
        """
        grad = self.snapshot["grad"] or _records(self.context, traceback)
        snapshot = {**self.snapshot, "grad": grad}
        try:
            forecast = _forecast(snapshot, self.context, traceback)
        except TimeUpError:
            forecast, snapshot["was_short"] = None, True
        data = is_data(traceback)
        context = dataclasses.replace(self.context, forecast=forecast, brings_data=data)
        if cache := forecast and forecast.outcome.raw["cache"]:
            context.breakdown.note_cache({*cache["addrs"]}, *cache["sizes"])
            totals = _totals(context.breakdown)[0]
            context = dataclasses.replace(context, totals=totals)
        return dataclasses.replace(self, snapshot=snapshot, context=context)

    @property
    def where(self) -> str:
        """The line that asked for more; "": unknown."""
        return place_of(sites.resolve(self.snapshot["site"]))

    def close(self) -> None:
        """Ends what runs for the forecast."""
        if self.context.forecast is not None:
            self.context.forecast.close()

    def diagnosis(self) -> Diagnosis:
        """What is to be said of it."""
        snapshot, context = self.snapshot, self.context
        seen, now = context.breakdown, snapshot["stats"]
        asked = context.requested_bytes
        request = request_of(snapshot, seen, context) if asked else None
        return Diagnosis(
            device=snapshot["device"],
            total_bytes=snapshot["total_bytes"],
            free_bytes=snapshot["free_bytes"],
            request=request,
            categories=[*_by_category(seen), *_others(snapshot)],
            lines=_lines(seen),
            host_bytes=now["host_block_bytes"],
            gap_bytes=_gap_bytes(self.blocks, now["page_bytes"]),
            remedies=remedies.rank(context),
            useless=_useless(snapshot),
        )


# ---- Who holds it


def _totals(seen: Breakdown) -> tuple[dict[Category, int], dict[Category, int]]:
    totals, counts = dict.fromkeys(Category, 0), dict.fromkeys(Category, 0)
    for (_, number), (size, count) in seen.groups().items():
        totals[Category(number)] += size
        counts[Category(number)] += count
    return totals, counts


def _by_category(seen: Breakdown) -> list[CategoryTotal]:
    totals, counts = _totals(seen)
    held = [CategoryTotal(TITLES[c], totals[c], counts[c]) for c in TITLES if counts[c]]
    return sorted(held, key=lambda total: total.size_bytes, reverse=True)


def _others(snapshot: dict[str, Any]) -> list[CategoryTotal]:
    """What is not oomph's: the driver knows no more than the sum."""
    held = snapshot["stats"]["device_bytes"]
    rest = snapshot["total_bytes"] - snapshot["free_bytes"] - held
    if rest <= 0:
        return []
    others = processes.others(snapshot["device"])
    if others is None:
        return [CategoryTotal("CUDA itself, other libraries and processes", rest)]
    theirs = min(sum(others.values()), rest)
    named = ", ".join(f"{pid}" for pid in others) or "none"
    found = [
        CategoryTotal("CUDA itself and other libraries", rest - theirs),
        CategoryTotal(f"other processes ({named})", theirs),
    ]
    return [total for total in found if total.size_bytes > 0]


def _lines(seen: Breakdown) -> list[Line]:
    found: dict[int, list[Any]] = {}  # bytes, inferred bytes, count, by category
    for (number, category), (size, count) in seen.groups().items():
        plain = number & ~_C.SITE_INFERRED
        held = found.setdefault(plain, [0, 0, 0, Counter()])
        held[0] += size
        held[1] += size if number != plain else 0
        held[2] += count
        held[3][category] += size
    lines = []
    for plain, (size, inferred, count, by) in found.items():
        site = sites.resolve(plain)
        if site is None:
            continue
        most = max(by, key=by.get)
        lines.append(
            Line(
                file=site.file,
                line=site.line,
                function=site.function,
                size_bytes=size,
                inferred_bytes=inferred,
                count=count,
                category=TITLES[Category(most)],
                category_bytes=by[most],
            )
        )
    return sorted(lines, key=lambda line: line.size_bytes, reverse=True)


def _gap_bytes(blocks: BlockList, page_bytes: int) -> int:
    """Free bytes in device pages of which some are in use."""
    ends: Counter[int] = Counter()  # bytes in use of the pages at the ends of blocks
    for addr, size, mark in zip(blocks.addrs, blocks.sizes, blocks.marks, strict=True):
        if mark & _C.MARK_HOST:
            continue
        first, last = addr // page_bytes, (addr + size - 1) // page_bytes
        if first == last:
            ends[first] += size
            continue
        ends[first] += page_bytes - addr % page_bytes
        ends[last] += addr + size - last * page_bytes
    return len(ends) * page_bytes - sum(ends.values())


# ---- What would help


def _context(
    snapshot: dict[str, Any], seen: Breakdown, totals: dict[Category, int]
) -> Context:
    import torch

    missing = (
        snapshot["stats"]["oom_missing_bytes"] if snapshot["requested_bytes"] else 0
    )
    return Context(
        breakdown=seen,
        totals=totals,
        stats=snapshot["stats"],
        requested_bytes=snapshot["requested_bytes"],
        missing_bytes=missing,
        forecast=None,
        in_backward=bool(snapshot["doing"]),
        in_optimizer=_is_in_optimizer(snapshot),
        autocast=snapshot["autocast"] or seen.program.half,
        device_count=torch.cuda.device_count(),
        offload=state.settings()["offload"],
        refusal=snapshot["message"],
        brings_data=False,
    )


def _forecast(
    snapshot: dict[str, Any], context: Context, traceback: TracebackType
) -> Forecast | None:
    """Of a step; elsewhere there is none."""
    if not snapshot["requested_bytes"]:
        return None
    program = context.breakdown.program
    records = snapshot["grad"] or context.in_backward or context.in_optimizer
    may_train = program.training or program.optimizers or context.saves_for_backward
    trains = bool(records and may_train and program.training is not False)
    return predict(context.breakdown, snapshot, traceback, trains, context.in_optimizer)


def _records(context: Context, traceback: TracebackType) -> bool:
    """Whether a step is recorded, though not where it failed.

    In ``forward`` of a ``torch.autograd.Function`` nothing is, as all of it is one
    node of the graph. Elsewhere a graph is there that holds more than the parameters.
    """
    from torch.autograd import function

    if context.breakdown.program.training is False:
        return False
    files = (frame.f_code.co_filename for frame, _ in walk_tb(traceback))
    saved, own = Category.ACTIVATION, Category.PARAMETER
    return function.__file__ in files or context.totals[saved] > context.totals[own]


def _is_in_optimizer(snapshot: dict[str, Any]) -> bool:
    """Whether an optimizer takes its step, and nothing is recorded or goes back."""
    from torch.optim import optimizer

    if not snapshot["requested_bytes"] or snapshot["grad"] or snapshot["doing"]:
        return False
    stack = walk_stack(sys._getframe())
    return any(f.f_code.co_filename == optimizer.__file__ for f, _ in stack)


def _useless(snapshot: dict[str, Any]) -> list[str]:
    now = snapshot["stats"]
    cached = max(
        0, now["reserved_bytes.all.current"] - now["allocated_bytes.all.current"]
    )
    return [
        "expandable_segments (under oomph, any free page can serve any request)",
        f"empty_cache() (oomph had already used the {format_size(cached)} that were "
        "cached)",
    ]
