"""Finds out who holds the memory of a device, and what would help."""

from __future__ import annotations

import linecache
import math
import sys
from types import FrameType
from typing import Any

from oomph import _C
from oomph.base import state
from oomph.base.sizes import format_size
from oomph.diagnosis import categories, processes, remedies
from oomph.diagnosis.categories import TITLES, Category, Census, Holders
from oomph.diagnosis.diagnosis import Diagnosis, Line, Request, Share
from oomph.diagnosis.program import Program
from oomph.diagnosis.remedies import Situation
from oomph.memory import sites
from oomph.memory.stats import stats


def explain(device: int | None = None) -> Diagnosis:
    """Says who holds the memory of a device now, and what would save how much.

    Looks at every object of Python: some tenths of a second in a large program. Takes
    no memory of the device and keeps no tensor alive. What nothing can reach any more
    is named as garbage, and Python's collector frees it.

    Args:
        device: Index of the device; None: PyTorch's current one.

    Returns:
        The diagnosis; ``print()`` shows its text, ``as_dict()`` is for JSON.

    Raises:
        RuntimeError: oomph is not installed.
        ValueError: The index is no device's.

    Example:
        >>> print(oomph.explain())
        >>> json.dumps(oomph.explain(0).as_dict())
    """
    if not state.is_installed():
        raise RuntimeError("oomph is not installed: call oomph.install() first")
    now = stats(device)
    if device is None:
        import torch

        device = torch.cuda.current_device()
    free_bytes, total_bytes = _C.memory_info(device)
    census, garbage = categories.sort_out(device)
    return diagnose(
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
            "modules": _C.active_modules(),
        },
        census,
        None,
        garbage,
    )


def diagnose(
    moment: dict[str, Any],
    census: Census,
    alive: Census | None,
    garbage: frozenset[int],
) -> Diagnosis:
    """The diagnosis of a moment.

    Args:
        moment: As ``_C.take_shortage()`` gives it.
        census: The blocks in use then.
        alive: Those in use now; None: the same.
        garbage: Addresses of those that were garbage (``categories.sort_out``).
    """
    graph = moment["grad"] or bool(moment["doing"])
    seen = categories.look(census, alive, graph, moment["modules"], garbage)
    now = moment["stats"]
    totals, counts = _totals(seen)
    situation = _situation(moment, seen, totals)
    request = _request(moment, seen, situation) if moment["requested_bytes"] else None
    return Diagnosis(
        device=moment["device"],
        total_bytes=moment["total_bytes"],
        free_bytes=moment["free_bytes"],
        request=request,
        shares=[*_shares(totals, counts), *_others(moment)],
        lines=_lines(seen),
        host_bytes=now["host_block_bytes"],
        gap_bytes=_gap_bytes(census, now["page_bytes"]),
        remedies=remedies.rank(situation),
        useless=_useless(moment),
    )


# ---- Who holds it


def _totals(seen: Holders) -> tuple[dict[Category, int], dict[Category, int]]:
    totals, counts = dict.fromkeys(Category, 0), dict.fromkeys(Category, 0)
    for (_, number), (size, count) in seen.groups.items():
        totals[Category(number)] += size
        counts[Category(number)] += count
    return totals, counts


def _shares(totals: dict[Category, int], counts: dict[Category, int]) -> list[Share]:
    found = [Share(TITLES[c], totals[c], counts[c]) for c in TITLES if counts[c]]
    return sorted(found, key=lambda share: share.size_bytes, reverse=True)


def _others(moment: dict[str, Any]) -> list[Share]:
    """What is not oomph's: the driver knows no more than the sum."""
    held = moment["stats"]["device_bytes"]
    rest = moment["total_bytes"] - moment["free_bytes"] - held
    if rest <= 0:
        return []
    others = processes.others(moment["device"])
    if others is None:
        return [Share("CUDA itself, other libraries and processes", rest)]
    theirs = min(sum(others.values()), rest)
    named = ", ".join(f"{pid}" for pid in others) or "none"
    found = [
        Share("CUDA itself and other libraries", rest - theirs),
        Share(f"other processes ({named})", theirs),
    ]
    return [share for share in found if share.size_bytes > 0]


def _lines(seen: Holders) -> list[Line]:
    found: dict[int, list[Any]] = {}  # bytes, inferred bytes, count, by category
    for (number, category), (size, count) in seen.groups.items():
        plain = number & ~_C.SITE_INFERRED
        if not plain:
            continue
        held = found.setdefault(plain, [0, 0, 0, {}])
        held[0] += size
        held[1] += size if number != plain else 0
        held[2] += count
        held[3][category] = held[3].get(category, 0) + size
    lines = []
    for plain, (size, inferred, count, by) in found.items():
        site = sites.resolve(plain)
        assert site is not None
        title = TITLES[Category(max(by, key=by.get))]
        line = Line(site.file, site.line, site.function, size, inferred, count, title)
        lines.append(line)
    return sorted(lines, key=lambda line: line.size_bytes, reverse=True)


def _gap_bytes(census: Census, page_bytes: int) -> int:
    """Free bytes in device pages of which some are in use."""
    ends: dict[int, int] = {}  # bytes in use of the pages at the ends of blocks
    for addr, size, mark in zip(census.addrs, census.sizes, census.marks, strict=True):
        if mark & _C.MARK_HOST:
            continue
        first, last = addr // page_bytes, (addr + size - 1) // page_bytes
        if first == last:
            ends[first] = ends.get(first, 0) + size
            continue
        ends[first] = ends.get(first, 0) + page_bytes - addr % page_bytes
        ends[last] = ends.get(last, 0) + addr + size - last * page_bytes
    return len(ends) * page_bytes - sum(ends.values())


# ---- What was asked for


def _request(moment: dict[str, Any], seen: Holders, situation: Situation) -> Request:
    site = sites.resolve(moment["site"])
    step = situation.forecast
    source = linecache.getline(site.file, site.line).strip() if site else ""
    return Request(
        size_bytes=moment["requested_bytes"],
        missing_bytes=moment["stats"]["oom_missing_bytes"],
        coming_bytes=seen.program.coming_bytes,
        where=f"{sites.short(site.file)}:{site.line} ({site.function})" if site else "",
        inferred=site.inferred if site else False,
        source=source,
        operator=moment["doing"],
        shape=guess_shape(moment["requested_bytes"], seen.program),
        before_backward=_is_recorded_forward(moment),
        step_bytes=max(step.peak_bytes, step.step_bytes) if step else 0,
        step_missing_bytes=(
            max(step.missing_bytes, step.step_missing_bytes) if step else 0
        ),
    )


def _is_recorded_forward(moment: dict[str, Any]) -> bool:
    return moment["grad"] and not moment["doing"]


def guess_shape(size_bytes: int, program: Program) -> str:
    """What a tensor of so many bytes looks like in this program; "": like nothing.

    One of a parameter's shape, or of an input's leading dimensions with the width of a
    parameter as its last.
    """
    names = {4: "float32", 2: "16-bit"}
    for size in names:
        for shape, _ in program.parameter_shapes:
            if len(shape) > 1 and math.prod(shape) * size == size_bytes:
                return f"{names[size]} {list(shape)}, as a parameter"
    widths = {dim for shape, _ in program.parameter_shapes for dim in shape}
    leads = {shape[:2] for shape, _ in program.input_shapes if len(shape) >= 2}
    leads |= {shape[:1] for shape, _ in program.input_shapes if shape}
    for lead in sorted(leads, key=lambda lead: (-len(lead), -math.prod(lead))):
        for size in names:
            width, rest = divmod(size_bytes, math.prod(lead) * size)
            if rest == 0 and width in widths:
                return f"{names[size]} {[*lead, width]}"
    return ""


# ---- What would help


def _situation(
    moment: dict[str, Any], seen: Holders, totals: dict[Category, int]
) -> Situation:
    import torch

    missing = moment["stats"]["oom_missing_bytes"] if moment["requested_bytes"] else 0
    situation = Situation(
        holders=seen,
        totals=totals,
        stats=moment["stats"],
        requested_bytes=moment["requested_bytes"],
        missing_bytes=missing,
        forecast=None,
        in_optimizer=_is_in_optimizer(moment),
        autocast=moment["autocast"] or seen.program.half,
        device_count=torch.cuda.device_count(),
        offload=state.setting("offload"),
        refusal=moment["message"],
    )
    is_to_go_on = missing > 0 and _is_recorded_forward(moment)
    return situation.foreseen() if is_to_go_on else situation


def _is_in_optimizer(moment: dict[str, Any]) -> bool:
    """Whether an optimizer takes its step, and nothing is recorded or goes back."""
    from torch.optim import optimizer

    if not moment["requested_bytes"] or moment["grad"] or moment["doing"]:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == optimizer.__file__:
            return True
        frame = frame.f_back
    return False


def _useless(moment: dict[str, Any]) -> list[str]:
    now = moment["stats"]
    cached = max(
        0, now["reserved_bytes.all.current"] - now["allocated_bytes.all.current"]
    )
    return [
        "expandable_segments: under oomph every free page serves every request already",
        f"empty_cache(): the {format_size(cached)} that are cached were used first",
    ]
