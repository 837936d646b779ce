"""What was found to leak, as data and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oomph.base.sizes import format_size
from oomph.holders.lines import Line
from oomph.memory.sites import short

LEAKS = "leaks"
BOUNDED = "grows, may be bounded"

ADVICE = {
    "outputs retained": "let go of what is no longer used, or keep less of it: "
    ".detach().cpu(), or a number",
    "loss kept": "keep only its value: loss.item(), or loss.detach()",
    "zero_grad missing": "call optimizer.zero_grad() once per step: each step adds its "
    "gradients to those of all earlier steps",
    "graph retained": "cut it between steps: .detach() what a step passes to the next",
    "create_graph": "take gradients whose graph you need from torch.autograd.grad(…, "
    "create_graph=True): backward() leaves the graph in .grad, which holds the "
    "parameters it came from; set .grad to None if you must",
    "retain_graph": "remove retain_graph=True: no other backward uses this graph, and "
    "without it backward frees what forward saved",
    "traceback": "keep str(error), or error.with_traceback(None): a traceback holds "
    "the variables of every function it passed through",
    "raised again": "make a new exception at each raise: a traceback holds the "
    "variables of every function it passed through, and that of one that is raised "
    "again gets longer each time",
    "closure": "pass numbers or .detach().cpu() to the function: it holds what it uses",
    "unfinished calls": "let the calls return: each that has not, here or in a thread "
    "that waits, keeps its variables",
    "cycle": "break the reference cycle, or make one of its references weak: it is "
    "garbage that only Python's collector frees, and the collector does not know about "
    "GPU memory (oomph runs it when that is short)",
    "global": "empty it, or bound its size: what a module holds is never freed",
    "hooks": "register it once, or call .remove() on the handle",
    "evaluation with gradients": "evaluate under torch.no_grad(): without it, forward "
    "saves tensors for a backward that never comes",
    "replaced parameters": "create the optimizer after the last change of the model: "
    "it holds the old parameters and their state, and does not train the new ones",
    "notebook": "end the line with a semicolon, or run %reset out: Out[] and the last "
    "traceback hold tensors",
    "grows": "no Python object was found that holds it",
}
"""Each verdict, and what to do about it."""
_TITLES = {LEAKS: "leaks found in", BOUNDED: "memory grows, may be bounded, seen in"}
_REST_PART = 0.25  # of growth that nobody holds, beside known one: blocks are rounded
_FEW_S = 10.0  # seconds of which tenths are shown


class LeakError(AssertionError):
    """A leak was found; the text is that of the report.

    :func:`oomph.assert_no_leaks` raises it, and a watch with the action ``raise``.
    """


@dataclass(frozen=True)
class Finding:
    """One mistake that leaks or wastes memory.

    Attributes:
        verdict: What kind of mistake; docs/leaks.md has the table.
        line: The line of the user's code to change; None: not found.
        growth_bytes: Bytes by which memory grows per step, call or second; 0: it takes
            memory, but does not grow.
        count: Tensors by which their number grows.
        shape: Shape of such a tensor; None: it is not about tensors of one kind.
        dtype: Its type, such as ``float32``; None: likewise.
        made_by: Name of its backward node, such as ``NllLossBackward0``; None: it has
            no graph.
        held_by: The chain of references that holds it, starting at the tensor; None:
            nothing in Python does.
        allocated_at: Lines that allocated the memory, the most bytes first.
        called_at: Where the function of the line was called, as it was seen to keep
            something; None: it was not seen, or no code of the user's called it.
        note: What else is known; "": nothing.
        device: Index of the device.
        per: ``step``; ``call`` of a model, where no steps end; or ``second``, where
            neither comes.
        certainty: ``leaks``, or ``grows, may be bounded``: it grew in all rounds that
            were looked at, and may yet come to an end.
        advice: What to do, where its holder says more than the verdict; "": see there.
    """

    verdict: str
    line: Line | None
    growth_bytes: int = 0
    count: float = 0
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    made_by: str | None = None
    held_by: str | None = None
    allocated_at: tuple[Line, ...] = ()
    note: str = ""
    device: int = 0
    per: str = "step"
    certainty: str = LEAKS
    called_at: Line | None = None
    advice: str = ""

    @property
    def text(self) -> str:
        """A paragraph for people: verdict, tensor, holder, lines and advice."""
        where = f" at {_plain(self.line)}" if self.line else ""
        growth = f", {format_size(self.growth_bytes)} per {self.per}"
        lines = [f"{self.verdict}{where}{growth if self.growth_bytes else ''}"]
        if self.shape is not None:
            size = " x ".join(map(str, self.shape)) or "a single number"
            made = f", from {self.made_by}" if self.made_by else ""
            lines.append(f"{self.dtype}, {size}{made}")
        if self.called_at:
            lines.append(f"called at {_plain(self.called_at)}")
        if self.held_by:
            lines.append(f"held by {self.held_by}")
        if self.allocated_at:
            lines.append(f"allocated at {', '.join(map(_plain, self.allocated_at))}")
        advice = self.advice or ADVICE[self.verdict]
        lines += [part for part in (self.note, advice) if part]
        return "\n    ".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Gives all attributes in types that JSON has.

        Returns:
            A dict with the names of the attributes; lines are dicts as well.

        Example:
            >>> [finding.as_dict()["verdict"] for finding in watched.report().findings]
            []
        """
        return asdict(self)


def _plain(line: Line) -> str:
    inside = f" in {line.function}()" if line.function else ""
    return f"{short(line.file)}:{line.line}{inside}"


def without(findings: list[Finding], known_bytes: int) -> list[Finding]:
    """Growth that nobody holds is told less bytes a step whose holder is known."""
    if not known_bytes:
        return findings
    rest = ((f, f.growth_bytes - known_bytes) for f in findings)
    return [
        replace(f, growth_bytes=more) if f.verdict == "grows" else f
        for f, more in rest
        if f.verdict != "grows" or more > _REST_PART * f.growth_bytes
    ]


def merged(findings: list[Finding]) -> list[Finding]:
    """Of the same line one, with the bytes of all."""
    found: dict[Any, Finding] = {}
    for finding in findings:
        known = found.get(finding.line)
        if known is None or finding.line is None:
            found[finding.line or len(found)] = finding
        else:
            size_bytes = known.growth_bytes + finding.growth_bytes
            found[finding.line] = replace(known, growth_bytes=size_bytes)
    return list(found.values())


@dataclass(frozen=True)
class Report:
    """What a watch has found so far.

    Attributes:
        steps: Steps that have ended during the watch.
        findings: The mistakes found, in the order in which they were found.
        growth_bytes: Bytes by which all allocated memory grew in a typical one of the
            last steps.
        calls: Calls of a model since the last of these, as far as they are watched.
        seconds: Of a watch that has seen neither; else 0.
    """

    steps: int
    findings: list[Finding] = field(default_factory=list)
    growth_bytes: int = 0
    calls: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The report for people: what leaks, or that no leak was found."""
        span = f"{self.steps} steps"
        if self.steps == 0 and self.calls:
            span = f"{self.calls} calls of a model"
        elif self.seconds:
            span = f"{self.seconds:.{1 if self.seconds < _FEW_S else 0}f} seconds"
        if not self.findings:
            return f"no leak was found in {span}"
        parts = []
        for certainty, title in _TITLES.items():
            found = [f.text for f in self.findings if f.certainty == certainty]
            if found:
                numbered = "\n".join(f"{i}. {text}" for i, text in enumerate(found, 1))
                parts.append(f"{title} {span}:\n{numbered}")
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """Gives all attributes in types that JSON has.

        Returns:
            A dict with the keys ``steps``, ``findings``, a list of dicts,
            ``growth_bytes``, ``calls`` and ``seconds``.

        Example:
            >>> text = json.dumps(watched.report().as_dict())
        """
        return asdict(self)
