"""Lines of source, and where code is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from traceback import walk_stack
from types import CodeType, FrameType

from oomph.memory.sites import is_user, short


@dataclass(frozen=True)
class Line:
    """A line of source.

    Attributes:
        file: Path of the file, as the code object has it.
        line: Line number, from 1.
        function: Name of the function that the line is in; "": it is in none.
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        inside = f"in {self.function}() " if self.function else ""
        return f"{inside}({short(self.file)}:{self.line})"


def line_of(frame: FrameType) -> Line:
    """Where a frame is."""
    name = frame.f_code.co_name
    return Line(
        frame.f_code.co_filename, frame.f_lineno, "" if name == "<module>" else name
    )


def line_of_code(code: CodeType) -> Line:
    """Where a function begins."""
    return Line(code.co_filename, code.co_firstlineno, code.co_name)


def user_line() -> Line | None:
    """The innermost line of the user's that is being executed by this thread."""
    stack = walk_stack(sys._getframe(1))
    return next((line_of(f) for f, _ in stack if is_user(f.f_code.co_filename)), None)


def user_call() -> Line | None:
    """The user's line that itself calls PyTorch; None: a library's does."""
    for frame, _ in walk_stack(sys._getframe(1)):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "oomph"):
            return line_of(frame) if is_user(frame.f_code.co_filename) else None
    return None
