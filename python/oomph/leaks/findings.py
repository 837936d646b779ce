"""What was found to leak, as data and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from oomph.base.sizes import format_size
from oomph.leaks.source import Line
from oomph.memory.sites import short

ADVICE = {
    "outputs retained": "keep what is needed of them: .detach().cpu(), or a number",
    "loss kept": "keep its value: loss.item(), or loss.detach()",
    "zero_grad missing": "call optimizer.zero_grad() once a step: each step adds its "
    "gradients to those of all steps before",
    "graph retained": "cut it between steps: .detach() what a step hands to the next",
    "retain_graph": "leave out retain_graph=True: nothing goes back through the graph "
    "again, and without it backward frees what forward saved",
    "traceback": "keep str(error), or error.with_traceback(None): a traceback holds "
    "the variables of every function that it went through",
    "closure": "give the function numbers, or .detach().cpu(): it holds what it uses",
    "cycle": "it is garbage, which nothing can reach any more; break the circle, or "
    "make one of its references weak: until Python's collector runs, which knows "
    "nothing of GPU memory (oomph runs it where that is short), nothing of it is freed",
    "global": "empty it, or bound its size: what a module holds lives for ever",
    "hooks": "register it once, or call .remove() on the handle",
    "evaluation with gradients": "evaluate under torch.no_grad(): otherwise forward "
    "saves for a backward that never comes",
    "replaced parameters": "make the optimizer after the last change of the model: it "
    "holds the old parameters and their state, and does not train the new ones",
    "notebook": "end the line with a semicolon, or run %reset out: Out[] and the last "
    "traceback hold tensors",
    "grows": "what holds it was not found among Python's objects",
}
"""Every verdict, and what to do about it."""


class LeakError(AssertionError):
    """Something leaks; the text is that of the report."""


@dataclass(frozen=True)
class Finding:
    """One mistake."""

    verdict: str  # a key of ADVICE
    line: Line | None  # of the user's code, to be changed
    growth_bytes: int = 0  # per step; 0: it costs memory, but does not grow
    count: float = 0  # tensors per step
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    made_by: str | None = None  # the backward node: tells the operator
    held_by: str | None = None  # the chain of references, from the tensor on
    allocated_at: tuple[Line, ...] = ()
    note: str = ""
    device: int = 0

    @property
    def text(self) -> str:
        """Some lines that say all of it."""
        where = f" at {_plain(self.line)}" if self.line else ""
        growth = f", {format_size(self.growth_bytes)} a step" * bool(self.growth_bytes)
        lines = [f"{self.verdict}{where}{growth}"]
        if self.shape is not None:
            size = " x ".join(map(str, self.shape)) or "a single number"
            made = f", from {self.made_by}" if self.made_by else ""
            lines.append(f"{self.dtype}, {size}{made}")
        if self.held_by:
            lines.append(f"held by {self.held_by}")
        if self.allocated_at:
            lines.append(f"allocated at {', '.join(map(_plain, self.allocated_at))}")
        lines += [part for part in (self.note, ADVICE[self.verdict]) if part]
        return "\n    ".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows."""
        return asdict(self)


def _plain(line: Line) -> str:
    inside = f" in {line.function}()" if line.function else ""
    return f"{short(line.file)}:{line.line}{inside}"


@dataclass(frozen=True)
class Report:
    """What a watch found so far."""

    steps: int
    findings: list[Finding] = field(default_factory=list)
    growth_bytes: int = 0  # of all allocated memory, in a typical step of the last ones

    @property
    def text(self) -> str:
        """What leaks, or that nothing does."""
        if not self.findings:
            return f"nothing was found to leak in {self.steps} steps"
        leaks = "\n".join(f"{i}. {f.text}" for i, f in enumerate(self.findings, 1))
        return f"leaks, found in {self.steps} steps:\n{leaks}"

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows."""
        return asdict(self)
