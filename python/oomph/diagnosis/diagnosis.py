"""Who holds the memory of a device, and what would help: as data and as text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oomph.base.sizes import format_size
from oomph.memory import sites

if TYPE_CHECKING:
    from oomph.diagnosis.remedy import Remedy


@dataclass(frozen=True)
class Share:
    """What the blocks of one category hold.

    Attributes:
        name: The category, such as ``activations saved for backward``.
        size_bytes: Bytes of its blocks, on the device and on the host.
        count: Number of its blocks; 0 for memory that is not oomph's.
    """

    name: str
    size_bytes: int
    count: int = 0


@dataclass(frozen=True)
class Line:
    """What the blocks that one line of source allocated hold.

    Blocks below 1 MiB have no line.

    Attributes:
        file: Path of the file, as the code object has it.
        line: Line number, from 1.
        function: Qualified name of the function, such as ``Block.forward``.
        size_bytes: Bytes of its blocks, including what its backward allocated.
        inferred_bytes: Of these, the bytes that its backward allocated.
        count: Number of its blocks.
        category: The category of most of its bytes.
        category_bytes: Of its bytes, those in that category.
    """

    file: str
    line: int
    function: str
    size_bytes: int
    inferred_bytes: int
    count: int
    category: str
    category_bytes: int


@dataclass(frozen=True)
class Saver:
    """Modules of one kind, and what their own calls save for backward.

    Attributes:
        path: As ``named_modules()`` has it, with ``*`` for numbers.
        kind: Name of the class.
        size_bytes: Of all of them in a step, without the calls of their parts.
    """

    path: str
    kind: str
    size_bytes: int


@dataclass(frozen=True)
class Request:
    """The allocation that failed.

    Attributes:
        size_bytes: Bytes requested.
        missing_bytes: Bytes that there was no room for.
        coming_bytes: Bytes of state that the optimizer has yet to allocate.
        where: The line of the user's code, as ``file:line (function)``, or
            ``Cell In[2], line 3 (function)`` in a notebook; "": unknown.
        inferred: Whether backward asked, for that line of forward.
        source: The text of the line; "": unknown.
        operator: Name of autograd's node in backward; "" in forward.
        shape: A shape and type of that size that the program has, such as
            ``float32 [16, 1024, 50304]``; "": none is known.
        before_backward: Whether forward asked and autograd records it, so that backward
            will need more.
        phase: Of the program: "forward" that autograd records, "backward" or
            "optimizer"; "": it is none of these.
        step_bytes: Predicted peak of the whole step in bytes
            (:mod:`oomph.diagnosis.forecast`), where turns grow that of the next one; 0:
            not predicted.
        step_missing_bytes: Of these, the bytes that there is no room for.
        step_grows_bytes: What each turn of the loop leaves behind.
        step_phase: When that peak is: "forward", "backward" or "optimizer".
        step_modules: Those of libraries whose own calls save most for backward in such
            a step.
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
    phase: str = ""
    step_bytes: int = 0
    step_missing_bytes: int = 0
    step_phase: str = ""
    step_grows_bytes: int = 0
    step_modules: list[Saver] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """Who holds the memory of a device, at one moment.

    :func:`oomph.explain` gives one, :func:`oomph.last_oom` that of the last error, and
    ``torch.OutOfMemoryError`` ends with its brief form. docs/errors.md says how to read
    them.

    Attributes:
        device: Index of the device.
        total_bytes: Bytes of the device, or of the limit set for it.
        free_bytes: Of these, the bytes that nobody holds.
        request: The allocation that failed; None: none did.
        shares: What each category holds, the largest first; memory that is not oomph's
            at the end. Each block counts in one category.
        lines: What each line of source holds, the largest first; of blocks of at least
            1 MiB.
        host_bytes: Of all these bytes, those on the host.
        gap_bytes: Free bytes in pages that are partly in use: what perfect packing
            would gain.
        remedies: What would help: first what is enough, then the largest saving.
        useless: Usual advice that would not help here, with reasons.

    Example:
        >>> found = oomph.explain(0)
        >>> [s.size_bytes for s in found.shares if s.name == "parameters and buffers"]
        [83886080]
        >>> found.request is None  # nothing failed
        True
    """

    device: int
    total_bytes: int
    free_bytes: int
    request: Request | None
    shares: list[Share]
    lines: list[Line]
    host_bytes: int
    gap_bytes: int
    remedies: list[Remedy]
    useless: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Gives all attributes in types that JSON has.

        Returns:
            A dict with the names of the attributes; their parts are dicts as well.

        Example:
            >>> text = json.dumps(oomph.explain(0).as_dict())
        """
        return dataclasses.asdict(self)

    @property
    def text(self) -> str:
        """All of it for people: at most 25 lines."""
        return "\n".join(_text(self))

    @property
    def brief(self) -> str:
        """What is missing, who has it, what helps: at most 11 lines."""
        return "\n".join(_brief(self))

    def __str__(self) -> str:
        """All of it."""
        return self.text


# ---- As text

_ACTIVATIONS = "activations saved for backward"
SHARES_SHOWN = 6
LINES_SHOWN = 4  # of source
BRIEF = 3  # holders and remedies in the brief form
REMEDIES_SHOWN = 5
SOURCE_WIDTH = 60  # characters of a line of source that are shown
SMALL_SHARE = 0.005  # categories below this share of the card go together


def _text(found: Diagnosis) -> list[str]:
    """At most 25, of which PyTorch's own is none."""
    return [
        *_request(found.request),
        f"GPU {found.device} has {format_size(found.total_bytes)}, held by:",
        *_shares(found),
        *_lines(found.lines),
        *_savers(found.request),
        _gaps(found),
        *_step(found.request),
        *_remedies(found),
    ]


def _brief(found: Diagnosis) -> list[str]:
    """At most 11, of which PyTorch's own is none."""
    request = found.request
    if request is None:
        return _text(found)
    title, rows = _best(found, BRIEF)
    return [
        _failure(request),
        *_step(request),
        f"GPU {found.device} has {format_size(found.total_bytes)}. When it failed, GPU "
        "memory was held mostly by:",
        *(
            row(share.size_bytes, share.name + _main_line(found, share))
            for share in sorted(found.shares, key=lambda s: -s.size_bytes)[:BRIEF]
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


def _main_line(found: Diagnosis, share: Share) -> str:
    """Which line has most of a category."""
    of = [line for line in found.lines if line.category == share.name]
    if not of:
        return ""
    most = max(of, key=lambda line: line.category_bytes)
    text = f", most by {sites.place(most.file, most.line)} ({most.function})"
    if share.name == _ACTIVATIONS and found.request and found.request.step_modules:
        text += f", in {_named(found.request.step_modules[0])}"
    return text


def _shortened(source: str) -> str:
    return source if len(source) <= SOURCE_WIDTH else source[: SOURCE_WIDTH - 3] + "..."


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


def row(size_bytes: int, text: str) -> str:
    """A size, and what has it or would save it."""
    return f"  {format_size(size_bytes):>10}  {text}"


def _shares(found: Diagnosis) -> list[str]:
    least = SMALL_SHARE * found.total_bytes
    large = [share for share in found.shares if share.size_bytes >= least]
    rest = [share for share in found.shares if share.size_bytes < least]
    rest, large = large[SHARES_SHOWN - 1 :] + rest, large[: SHARES_SHOWN - 1]
    rows = [row(share.size_bytes, share.name) for share in large]
    if rest:
        names = ", ".join(share.name for share in rest)
        rows.append(row(sum(share.size_bytes for share in rest), names))
    if found.host_bytes:
        rows.append(row(found.host_bytes, "of this is on the host"))
    return rows


def _lines(lines: list[Line]) -> list[str]:
    if not lines:
        return []
    rows = [
        row(
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
            f"Fragmentation is not the cause: {missing} are missing, and only {gaps} "
            "are lost to it."
        )
    return (
        f"Fragmentation is a cause: {missing} are missing, and {gaps} are lost to it."
    )


def _step(request: Request | None) -> list[str]:
    if request is None:
        return []
    if not request.step_bytes:
        more = " Backward will need more." if request.before_backward else ""
        why = "oomph could not run it again."
        return [f"How much a whole step needs is not known: {why}{more}"]
    peak, missing = request.step_bytes, request.step_missing_bytes
    what = "This turn of the loop" if request.step_grows_bytes else "A whole step"
    told = []
    if missing:
        told.append(
            f"{what} needs about {format_size(peak)}, at its peak in "
            f"{PHASES[request.step_phase]}: {format_size(missing)} more than the "
            f"{format_size(peak - missing)} there is room for."
        )
    if request.step_grows_bytes:
        each = format_size(request.step_grows_bytes)
        told.append(
            f"Each turn of the loop adds {each}; how many turns come is not known."
        )
    return told


PHASES = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "the optimizer's step",
}


def _best(found: Diagnosis, count: int) -> tuple[str, list[str]]:
    """The remedies that save most, with a title; what is enough comes first."""
    if not found.remedies:
        return "Nothing that oomph knows of would save much.", []
    rows = [
        row(r.saves_bytes, f"{r.action}; cost: {r.cost}{_mark(r, found)}")
        for r in found.remedies[:count]
    ]
    return _title(found), rows


def _title(found: Diagnosis) -> str:
    """What the remedies below it are, and of what they save so much."""
    request, known = found.request, {remedy.enough for remedy in found.remedies}
    if request is None:
        return "What would save memory (estimates):"
    if True not in known and None in known:
        return "What would save memory (whether it is enough is not known):"
    of = "the peak"
    if request.step_bytes and not request.step_grows_bytes:
        of = f"the {format_size(request.step_bytes)}"
    if True not in known:
        return f"What would save some of {of}; none is enough by itself:"
    return (
        f"What helps, with the memory it saves of {of} (each is enough by itself "
        "unless marked):"
    )


def _mark(remedy: Remedy, found: Diagnosis) -> str:
    """Whether it is enough, where the title does not say it."""
    if remedy.enough is False:
        return " (not enough alone)"
    is_like_title = remedy.enough or not any(other.enough for other in found.remedies)
    return "" if is_like_title else " (not known whether this is enough)"


def _remedies(found: Diagnosis) -> list[str]:
    title, rows = _best(found, REMEDIES_SHOWN)
    return [title, *rows, *_useless(found)]


def _useless(found: Diagnosis) -> list[str]:
    if found.request is None:
        return []
    return [f"Would not help: {'; '.join(found.useless)}."]
