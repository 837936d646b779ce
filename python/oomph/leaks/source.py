"""The user's own code: which frames and files are theirs, and what they say."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
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


def running_functions() -> list[str]:
    """The names of the user's functions that are being executed by this thread."""
    codes = [frame.f_code for frame, _ in walk_stack(sys._getframe(1))]
    return [code.co_name for code in codes if is_user(code.co_filename)]


def user_files() -> list[str]:
    """The user's files: those being executed, innermost first, and other modules'."""
    stack = walk_stack(sys._getframe(1))
    files = dict.fromkeys(frame.f_code.co_filename for frame, _ in stack)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            files[file] = None
    return [file for file in files if is_user(file)]


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None  # a notebook's magic, a file that changed


def tree(file: str) -> ast.Module | None:
    """A file's syntax, or None if it cannot be read."""
    lines = linecache.getlines(file)
    return _parsed("".join(lines)) if lines else None


def calls(file: str, name: str) -> Iterator[ast.Call]:
    """The calls of what ends in this name: ``name(…)`` and ``x.name(…)``."""
    parsed = tree(file)
    for node in ast.walk(parsed) if parsed is not None else ():
        if isinstance(node, ast.Call) and last_name(node.func) == name:
            yield node


def last_name(node: ast.AST) -> str:
    """The last name of ``a``, ``x.a``, ``x.a[i]``; empty for anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
