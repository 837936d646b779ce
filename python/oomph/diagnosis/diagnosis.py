"""Who holds the memory of a device, and what would help: as data."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oomph.diagnosis import wording

if TYPE_CHECKING:
    from oomph.diagnosis.remedy import Remedy


@dataclass(frozen=True)
class CategoryTotal:
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
            (:mod:`oomph.diagnosis.forecast`), where iterations grow that of the next
            one; 0: not predicted. Where masks choose rows, the most that it may be.
        step_least_bytes: The least that it may be; elsewhere as many.
        step_is_part: Whether the step may come to more: not all of it could run again,
            or there was no time.
        was_short: Whether there was no time to run the step, or to try all remedies.
        step_missing_bytes: Of ``step_bytes``, those that there is no room for.
        step_grows_bytes: What each iteration of the loop leaves behind.
        step_turns: How many iterations the loop has, where they grow; 0: unknown.
        step_growth_bytes: By how much each of the last steps left more allocated than
            the one before; 0: not all did.
        step_all_bytes: What all of them come to; 0: unknown.
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
    step_least_bytes: int = 0
    step_is_part: bool = False
    was_short: bool = False
    step_missing_bytes: int = 0
    step_phase: str = ""
    step_grows_bytes: int = 0
    step_turns: int = 0
    step_growth_bytes: int = 0
    step_all_bytes: int = 0
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
        categories: What each category holds, the largest first; memory that is not
            oomph's at the end. Each block counts in one category.
        lines: What each line of source holds, the largest first; of blocks of at least
            1 MiB.
        host_bytes: Of all these bytes, those on the host.
        gap_bytes: Free bytes in pages that are partly in use: what perfect packing
            would gain.
        remedies: What would help: first what is enough, then the largest saving.
        useless: Usual advice that would not help here, with reasons.

    Example:
        >>> found = oomph.explain(0)
        >>> {c.name: c.size_bytes for c in found.categories}["parameters and buffers"]
        83886080
        >>> found.request is None  # nothing failed
        True
    """

    device: int
    total_bytes: int
    free_bytes: int
    request: Request | None
    categories: list[CategoryTotal]
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
        found = dataclasses.asdict(self)
        found["shares"] = found["categories"]
        return found  # shares is its name up to 0.1

    @property
    def shares(self) -> list[CategoryTotal]:
        """The categories."""
        text = "Diagnosis.shares is called Diagnosis.categories now"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.categories  # its name up to 0.1

    @property
    def text(self) -> str:
        """All of it for people: at most 25 lines."""
        return "\n".join(wording.whole(self))

    @property
    def brief(self) -> str:
        """What is missing, who has it, what helps: at most 11 lines."""
        return "\n".join(wording.brief(self))

    def __str__(self) -> str:
        """All of it."""
        return self.text


def __getattr__(name: str) -> Any:
    if name == "Share":  # its name up to 0.1
        text = "oomph.diagnosis.diagnosis.Share is called CategoryTotal now"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return CategoryTotal
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
