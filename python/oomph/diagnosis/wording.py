"""What people read of a diagnosis: all of it, or its brief form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomph.base.sizes import format_size
from oomph.base.tables import sized
from oomph.memory import sites

if TYPE_CHECKING:
    from oomph.diagnosis.diagnosis import CategoryTotal, Diagnosis, Line, Request, Saver
    from oomph.diagnosis.remedy import Remedy

_ACTIVATIONS = "activations saved for backward"
OFFLOAD = "oomph's offload:on-oom"  # a remedy
CATEGORIES_SHOWN = 6
LINES_SHOWN = 4  # of source
BRIEF = 3  # holders and remedies in the brief form
REMEDIES_SHOWN = 5
SOURCE_WIDTH = 60  # characters of a line of source that are shown
SMALL_SHARE = 0.005  # categories below this share of the card go together


def whole(found: Diagnosis) -> list[str]:
    """All of it, in lines: at most 25, of which PyTorch's own is none."""
    return [
        *_request(found.request),
        f"GPU {found.device} has {format_size(found.total_bytes)}, held by:",
        *_categories(found),
        *_lines(found.lines),
        *_savers(found.request),
        _gaps(found),
        *_step(found.request),
        *_remedies(found),
    ]


def brief(found: Diagnosis) -> list[str]:
    """What matters most: at most 11 lines, of which PyTorch's own is none."""
    request = found.request
    if request is None:
        return whole(found)
    title, rows = _best(found, BRIEF)
    step = _step(request)
    largest = sorted(found.categories, key=lambda total: -total.size_bytes)
    return [
        _failure(request),
        *step,
        f"GPU {found.device} has {format_size(found.total_bytes)}. When it failed, GPU "
        "memory was held mostly by:",
        *(
            sized(total.size_bytes, total.name + _main_line(found, total))
            for total in largest[: BRIEF - (len(step) > 1)]
        ),
        title,
        *rows,
        "For all details: print(oomph.last_oom()), or set OOMPH_CONF=error:full",
    ]


def _failure(request: Request) -> str:
    """Where it failed, and how many bytes short."""
    text = "It failed"
    if request.where:
        text += " in the backward of " if request.inferred else " at "
        text += request.where
    text += f", {format_size(request.missing_bytes)} short"
    return f"{text}: {_shortened(request.source)}" if request.source else text


def _main_line(found: Diagnosis, category: CategoryTotal) -> str:
    """Which line has most of a category."""
    of = [line for line in found.lines if line.category == category.name]
    if not of:
        return ""
    most = max(of, key=lambda line: line.category_bytes)
    text = f", most by {sites.place(most.file, most.line)} ({most.function})"
    if category.name == _ACTIVATIONS and found.request and found.request.step_modules:
        text += f", in {_named(found.request.step_modules[0])}"
    return text


def _shortened(source: str) -> str:
    return source if len(source) <= SOURCE_WIDTH else source[: SOURCE_WIDTH - 3] + "..."


def _request(request: Request | None) -> list[str]:
    if request is None:
        return []
    where = request.where or "an unknown line"
    text = f"Asked for at {where}"
    if request.inferred:
        text = f"Asked for by the backward of {where} (inferred)"
    if request.operator:
        text += f", in {request.operator}"
    if request.shape:
        dtype, _, shape = request.shape.partition(" ")
        article = "an" if dtype.startswith("int") else "a"
        text += f"; probably {article} {dtype} tensor of shape {shape}"
    source = _shortened(request.source)
    more = (
        f"The optimizer will allocate another {format_size(request.coming_bytes)}."
        if request.coming_bytes
        else ""
    )
    return [text, *([f"    {source}"] if source else []), *([more] if more else [])]


def _categories(found: Diagnosis) -> list[str]:
    least = SMALL_SHARE * found.total_bytes
    large = [total for total in found.categories if total.size_bytes >= least]
    rest = [total for total in found.categories if total.size_bytes < least]
    rest, large = large[CATEGORIES_SHOWN - 1 :] + rest, large[: CATEGORIES_SHOWN - 1]
    rows = [sized(total.size_bytes, total.name) for total in large]
    if rest:
        names = ", ".join(total.name for total in rest)
        rows.append(sized(sum(total.size_bytes for total in rest), names))
    if found.host_bytes:
        rows.append(sized(found.host_bytes, "of this is on the host"))
    return rows


def _lines(lines: list[Line]) -> list[str]:
    if not lines:
        return []
    rows = [
        sized(
            line.size_bytes,
            f"{sites.place(line.file, line.line)} ({line.function}), {line.count} "
            f"block{'s' * (line.count != 1)}, "
            f"{'mostly ' * (line.category_bytes < line.size_bytes)}{line.category}",
        )
        for line in lines[:LINES_SHOWN]
    ]
    return ["Most of it, by line:", *rows]


def _savers(request: Request | None) -> list[str]:
    if request is None or not request.step_modules:
        return []
    rows = [f"{format_size(s.size_bytes)} {_named(s)}" for s in request.step_modules]
    return [f"A step saves for backward, by module: {', '.join(rows)}"]


def _named(saver: Saver) -> str:
    return f"{saver.path} ({saver.kind})"


def _gaps(found: Diagnosis) -> str:
    gaps = format_size(found.gap_bytes)
    if found.request is None:
        return f"Fragmentation: {gaps} are free in partly used pages."
    missing = format_size(found.request.missing_bytes)
    if found.gap_bytes < found.request.missing_bytes:
        return (
            f"Fragmentation is not the cause: it wastes only {gaps}, and {missing} is "
            "needed."
        )
    return f"Fragmentation is a cause: it wastes {gaps}, and {missing} is needed."


def _step(request: Request | None) -> list[str]:
    if request is None:
        return []
    if not request.step_bytes:
        more = " Backward will need more." if request.before_backward else ""
        why = "oomph could not run it again."
        if request.was_short:
            why = "oomph had no CPU time left to run it again."
        return [f"How much a whole step needs is unknown: {why}{more}"]
    room = request.step_bytes - request.step_missing_bytes
    what = "This iteration of the loop" if request.step_grows_bytes else "A whole step"
    lines = []
    if request.step_missing_bytes:
        needs, most = _needed(request)
        lines.append(
            f"{what} needs {needs}, at its peak in {PHASES[request.step_phase]}: "
            f"{most} more than the {format_size(room)} there is room for."
        )
    if request.step_grows_bytes:
        each = format_size(request.step_grows_bytes)
        rest = "the number of iterations still to come is unknown"
        if request.step_turns:
            needed = format_size(request.step_all_bytes)
            rest = f"all {request.step_turns} iterations need about {needed}"
        lines.append(f"Each iteration of the loop adds {each}; {rest}.")
    elif request.step_growth_bytes:
        each = format_size(request.step_growth_bytes)
        lines.append(
            f"Each of the last steps left {each} more than the one before, such as a "
            "buffer that fills: later steps need more."
        )
    return lines


def _needed(request: Request) -> tuple[str, str]:
    """How much, and what of it is missing, as far as that is known."""
    least, most = request.step_least_bytes, request.step_bytes
    missing = request.step_missing_bytes
    if request.step_is_part:
        more = format_size(missing - (most - least))
        return f"at least {format_size(least)}", more
    if least == most:
        return f"about {format_size(most)}", format_size(missing)
    span = f"between {format_size(least)} and {format_size(most)}"
    return (
        f"{span}, depending on how many rows the masks select",
        f"up to {format_size(missing)}",
    )


PHASES = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "the optimizer's step",
}


def _best(found: Diagnosis, count: int) -> tuple[str, list[str]]:
    """The remedies that save most, with a title; what is enough comes first."""
    if not found.remedies:
        if found.request is not None and found.request.was_short:
            return "oomph had no CPU time left to try remedies.", []
        return "oomph knows nothing that would save much.", []
    rows = [
        sized(r.saves_bytes, f"{r.action}; cost: {r.cost}{_mark(r, found)}")
        for r in found.remedies[:count]
    ]
    return _title(found), rows


def _title(found: Diagnosis) -> str:
    """What the remedies below it are, and of what they save so much."""
    request, known = found.request, {remedy.enough for remedy in found.remedies}
    if request is None:
        return "What would save memory (estimates):"
    if True not in known and None in known:
        return "What would save memory (oomph does not know whether it is enough):"
    of = "the peak"
    if request.step_bytes and not request.step_grows_bytes:
        of = f"the {format_size(request.step_bytes)}"
    rest = "; oomph had no CPU time left to try all" if request.was_short else ""
    if True not in known:
        return f"What would save a part of {of}; none is enough by itself{rest}:"
    return (
        f"What helps, and how much of {of} it saves (each is enough by itself unless "
        f"marked{rest}):"
    )


def _mark(remedy: Remedy, found: Diagnosis) -> str:
    """Whether it is enough, where the title does not say it."""
    if remedy.enough is False:
        return " (not enough alone)"
    is_like_title = remedy.enough or not any(other.enough for other in found.remedies)
    return "" if is_like_title else " (unknown whether this is enough)"


def _remedies(found: Diagnosis) -> list[str]:
    title, rows = _best(found, REMEDIES_SHOWN)
    return [title, *rows, *_useless(found)]


def _useless(found: Diagnosis) -> list[str]:
    if found.request is None:
        return []
    return [f"Would not help: {'; '.join(found.useless)}."]
