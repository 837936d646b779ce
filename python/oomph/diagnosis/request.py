"""The allocation that failed: where, of what shape, and what its step comes to."""

from __future__ import annotations

import linecache
import math
from typing import Any

from oomph.diagnosis.categories import Breakdown
from oomph.diagnosis.diagnosis import Request, Saver
from oomph.diagnosis.forecast import Forecast
from oomph.diagnosis.program import Program
from oomph.diagnosis.remedy import Context
from oomph.memory import sites
from oomph.memory.sites import Site


def request_of(snapshot: dict[str, Any], seen: Breakdown, context: Context) -> Request:
    """The allocation of a snapshot that failed.

    Args:
        snapshot: As ``_C.take_oom()`` gives it.
        seen: Who held the memory.
        context: What rules look at.
    """
    site = sites.resolve(snapshot["site"])
    step = context.forecast
    source = linecache.getline(site.file, site.line).strip() if site else ""
    turns, all_bytes = step.loop if step else (0, 0)
    return Request(
        size_bytes=snapshot["requested_bytes"],
        missing_bytes=snapshot["stats"]["oom_missing_bytes"],
        coming_bytes=seen.program.coming_bytes,
        where=place_of(site),
        inferred=site.inferred if site else False,
        source=source,
        operator=snapshot["doing"],
        shape=_shape(snapshot["requested_bytes"], seen.program, step),
        before_backward=_phase(snapshot, context) == "forward",
        phase=_phase(snapshot, context),
        step_bytes=step.next.most if step else 0,
        step_least_bytes=step.next.least if step else 0,
        step_missing_bytes=step.missing_of(step.next.most) if step else 0,
        step_is_part=bool(step and step.outcome.is_part),
        was_short=not step.is_all_tried if step else snapshot.get("was_short", False),
        step_phase=step.outcome.phase if step else "",
        step_grows_bytes=step.outcome.grows_bytes if step else 0,
        step_growth_bytes=step.step_growth_bytes if step else 0,
        step_turns=turns,
        step_all_bytes=all_bytes,
        step_modules=[Saver(*each) for each in step.outcome.raw["saved"]]
        if step
        else [],
    )


def place_of(site: Site | None) -> str:
    """A line as the error names it; "": unknown."""
    return f"{sites.place(site.file, site.line)} ({site.function})" if site else ""


def _phase(snapshot: dict[str, Any], context: Context) -> str:
    if context.in_optimizer:
        return "optimizer"
    if snapshot["doing"]:
        return "backward"
    return "forward" if snapshot["grad"] and not context.brings_data else ""


def _shape(size_bytes: int, program: Program, step: Forecast | None) -> str:
    """What a tensor of so many bytes is in the step, else what it looks like."""
    rounded = -(-size_bytes // 512) * 512
    known = step.outcome.raw["shapes"].get(str(rounded), []) if step else []
    guess = guess_shape(size_bytes, program)
    for dtype, _ in known:
        named = guess.replace("16-bit", dtype) if "float16" in dtype else guess
        if named.startswith(f"{dtype} "):
            return named  # an operator's own dimensions may be joined
    return "{} {}".format(*known[0]) if known else guess


def guess_shape(size_bytes: int, program: Program) -> str:
    """What a tensor of so many bytes looks like in this program; "": like nothing.

    One of a parameter's shape, or of an input's leading dimensions with the width of a
    parameter as its last.
    """
    names = {4: "float32", 2: "16-bit"}
    for size in names:
        for shape, _ in program.parameter_shapes:
            if len(shape) > 1 and math.prod(shape) * size == size_bytes:
                return f"{names[size]} {list(shape)}, like a parameter"
    widths = {dim for shape, _ in program.parameter_shapes for dim in shape}
    leads = {shape[:2] for shape, _ in program.input_shapes if len(shape) >= 2}
    leads |= {shape[:1] for shape, _ in program.input_shapes if shape}
    for lead in sorted(leads, key=lambda lead: (-len(lead), -math.prod(lead))):
        for size in names:
            width, rest = divmod(size_bytes, math.prod(lead) * size)
            if rest == 0 and width in widths:
                return f"{names[size]} {[*lead, width]}"
    return ""
