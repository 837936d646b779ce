"""Who holds the memory of a device, and what would help: as data and as text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from oomph.base.sizes import format_size
from oomph.memory import sites


@dataclass(frozen=True)
class Share:
    """What a category holds.

    Attributes:
        name: Of the category.
        size_bytes: Of its blocks.
        count: How many blocks; 0 for what others hold.
    """

    name: str
    size_bytes: int
    count: int = 0


@dataclass(frozen=True)
class Line:
    """What a line of source holds.

    Attributes:
        file: As the code object names it.
        line: From 1.
        function: Its qualified name.
        size_bytes: Of its blocks, what its backward allocated included.
        inferred_bytes: Of these, what its backward allocated.
        count: How many blocks.
        category: What most of its bytes are.
    """

    file: str
    line: int
    function: str
    size_bytes: int
    inferred_bytes: int
    count: int
    category: str


@dataclass(frozen=True)
class Request:
    """The allocation that failed.

    Attributes:
        size_bytes: What was asked for.
        missing_bytes: Bytes it was short of.
        coming_bytes: What the optimizer has yet to make of its state.
        where: The line of the user's code, as ``file:line (function)``; "": unknown.
        inferred: Backward asked, for that line of forward.
        source: The text of the line; "": not to be had.
        operator: Autograd's node in backward; "" in forward.
        shape: What the bytes look like, such as ``float32 [16, 1024, 50304]``; "": like
            nothing known.
        before_backward: Forward asked, and is recorded: backward will want more.
        step_bytes: What the whole step would have in use at most
            (:mod:`oomph.diagnosis.forecast`); 0: not predicted.
        step_missing_bytes: What there is no room for, of that.
    """

    size_bytes: int
    missing_bytes: int
    coming_bytes: int
    where: str
    inferred: bool
    source: str
    operator: str
    shape: str
    before_backward: bool
    step_bytes: int = 0
    step_missing_bytes: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """Who holds the memory of a device, at one moment.

    Attributes:
        device: Index of the device.
        total_bytes: What it has, under the limits set.
        free_bytes: What nobody holds of it.
        request: The allocation that failed; None: none did.
        shares: What each category holds, the largest first; others at the end.
        lines: What each line of source holds, the largest first: of blocks from 1 MiB.
        host_bytes: Of all these, what lies on the host.
        gap_bytes: Free bytes in pages that are partly in use: what perfect packing
            would gain.
        remedies: What would help, by what it saves (``remedies.Remedy``).
        useless: Usual advice that would not help here, with reasons.
    """

    device: int
    total_bytes: int
    free_bytes: int
    request: Request | None
    shares: list[Share]
    lines: list[Line]
    host_bytes: int
    gap_bytes: int
    remedies: list[Any]
    useless: list[str]

    def as_dict(self) -> dict[str, Any]:
        """All of it, of types that JSON knows."""
        return dataclasses.asdict(self)

    @property
    def text(self) -> str:
        """For people: at most 25 lines."""
        return "\n".join(_text(self))

    def __str__(self) -> str:
        """The text."""
        return self.text


# ---- As text

SHARES_SHOWN = 6
LINES_SHOWN = 4  # of source
REMEDIES_SHOWN = 5
SOURCE_WIDTH = 60  # characters of a line of source that are shown
SMALL_SHARE = 0.005  # categories below this share of the card go together


def _text(found: Diagnosis) -> list[str]:
    """At most 25, of which PyTorch's own is none."""
    return [
        *_request(found.request),
        f"GPU {found.device} has {format_size(found.total_bytes)}:",
        *_shares(found),
        *_lines(found.lines),
        _gaps(found),
        *_step(found.request),
        *_remedies(found),
    ]


def _request(request: Request | None) -> list[str]:
    if request is None:
        return []
    where = request.where or "a line that is not known"
    text = f"Asked for at {where}"
    if request.inferred:
        text = f"Asked for by the backward of {where} (inferred)"
    if request.operator:
        text += f", in {request.operator}"
    if request.shape:
        text += f"; it looks like {request.shape}"
    source = request.source
    if len(source) > SOURCE_WIDTH:
        source = source[: SOURCE_WIDTH - 3] + "..."
    more = (
        f"The optimizer has yet to make {format_size(request.coming_bytes)} of state."
        if request.coming_bytes
        else ""
    )
    return [text, *([f"    {source}"] if source else []), *([more] if more else [])]


def _row(size_bytes: int, text: str) -> str:
    return f"  {format_size(size_bytes):>10}  {text}"


def _shares(found: Diagnosis) -> list[str]:
    least = SMALL_SHARE * found.total_bytes
    large = [share for share in found.shares if share.size_bytes >= least]
    rest = [share for share in found.shares if share.size_bytes < least]
    rest, large = large[SHARES_SHOWN - 1 :] + rest, large[: SHARES_SHOWN - 1]
    rows = [_row(share.size_bytes, share.name) for share in large]
    if rest:
        names = ", ".join(share.name for share in rest)
        rows.append(_row(sum(share.size_bytes for share in rest), names))
    if found.host_bytes:
        rows.append(_row(found.host_bytes, "of this lies on the host"))
    return rows


def _lines(lines: list[Line]) -> list[str]:
    if not lines:
        return []
    rows = [
        _row(
            line.size_bytes,
            f"{sites.short(line.file)}:{line.line} ({line.function}), {line.count} "
            f"block{'s' * (line.count != 1)}, {line.category}",
        )
        for line in lines[:LINES_SHOWN]
    ]
    return ["Most of it by line:", *rows]


def _gaps(found: Diagnosis) -> str:
    gaps = format_size(found.gap_bytes)
    if found.request is None:
        return f"Fragmentation: {gaps} are free in pages that are held."
    if found.gap_bytes < found.request.missing_bytes:
        return (
            f"Fragmentation had no part: {format_size(found.request.missing_bytes)} "
            f"are missing, and only {gaps} are free in pages that are held."
        )
    return (
        f"Fragmentation had a part: {format_size(found.request.missing_bytes)} are "
        f"missing, and {gaps} are free in pages that are partly in use."
    )


def _step(request: Request | None) -> list[str]:
    if request is None or request.step_missing_bytes <= request.missing_bytes:
        return []
    return [
        f"A whole step would come to about {format_size(request.step_bytes)}, "
        f"{format_size(request.step_missing_bytes)} more than there is room for."
    ]


def _remedies(found: Diagnosis) -> list[str]:
    if not found.remedies:
        return ["Nothing known here would save much.", *_useless(found)]
    shown = found.remedies[:REMEDIES_SHOWN]
    if not any(remedy.enough for remedy in shown):  # what is enough must be among them
        shown[-1:] = [r for r in found.remedies if r.enough][:1] or shown[-1:]
    rows = [
        _row(
            remedy.saves_bytes,
            f"{remedy.action}; costs: {remedy.cost}"
            + (" (not enough alone)" if remedy.enough is False else ""),
        )
        for remedy in shown
    ]
    is_early = found.request is not None and found.request.before_backward
    title = "Would save here, as estimated"
    if found.request is not None and found.request.step_bytes:
        title = "Would save of the step's memory, as estimated"
    elif is_early:
        title += ", before backward wants more"
    return [f"{title}:", *rows, *_useless(found)]


def _useless(found: Diagnosis) -> list[str]:
    if found.request is None:
        return []
    return [f"Would not help: {'; '.join(found.useless)}."]
