"""The user's own code: which frames and files are theirs, and what they say."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from traceback import walk_stack

from oomph.holders.lines import Line
from oomph.holders.modules import is_of_program, namespaces
from oomph.memory.sites import is_user

_ADDING = frozenset(("append", "appendleft", "add", "extend", "insert", "update"))
_ADDING |= {"setdefault", "put", "put_nowait", "push"}


def running_functions() -> list[str]:
    """The names of the user's functions that are being executed by this thread."""
    codes = [frame.f_code for frame, _ in walk_stack(sys._getframe(1))]
    return [code.co_name for code in codes if is_user(code.co_filename)]


_UNNAMED = "<lambda>"
_met: dict[str, None] = {}  # files that were executed


def meet_files() -> None:
    """Notes the files that are being executed: as a process ends none is."""
    stack = walk_stack(sys._getframe(1))
    _met.update((frame.f_code.co_filename, None) for frame, _ in stack)


def user_files() -> list[str]:
    """The user's files: those being executed, innermost first, and others known."""
    stack = walk_stack(sys._getframe(1))
    files = dict.fromkeys(frame.f_code.co_filename for frame, _ in stack) | _met
    for _, namespace in namespaces(is_of_program):
        file = namespace.get("__file__")
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


def statement(file: str, line: int) -> ast.stmt | None:
    """The innermost statement that a line is in; None: it cannot be read."""
    parsed = tree(file)
    around = [
        node
        for node in (ast.walk(parsed) if parsed is not None else ())
        if isinstance(node, ast.stmt)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno) if around else None


def own_nodes(outer: ast.stmt) -> Iterator[ast.AST]:
    """A statement's own expressions: of a loop its head, without its body."""
    yield outer
    for child in ast.iter_child_nodes(outer):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from ast.walk(child)


def puts_into(name: str, binds: bool = True, is_attribute: bool = False) -> Line | None:
    """A statement of the user's that puts something into what has this name.

    The first in the nearest file: ``name.append(…)``, ``x.name[k] = …``,
    ``name += …``, ``x.name = …``, ``name, other = …``, rather in a function that is not
    ``__init__``.

    Args:
        name: Of a variable or an attribute.
        binds: Whether it may be bound anew; else something is added to it.
        is_attribute: Whether it is no variable.
    """
    for file in user_files():
        parsed = tree(file)
        found = [
            Line(file, getattr(node, "lineno", 0), function)
            for function, node in (_in_functions(parsed) if parsed is not None else ())
            if _puts(node, name, binds, is_attribute)
        ]
        if found:
            return min(found, key=lambda line: line.function in ("__init__", ""))
    return None


def hands_over(line: Line) -> Line | None:
    """The one statement that uses the function defined at a line, beside it.

    A lambda that has no name is used where it stands.
    """
    parsed = tree(line.file)
    for outer, node in _in_functions(parsed) if parsed is not None else ():
        body: list[ast.stmt] = getattr(node, "body", None) or []
        for made in body if isinstance(body, list) else ():
            if named := _function_name(made, line.line):
                name = node.name if isinstance(node, ast.FunctionDef) else outer
                if named == _UNNAMED:
                    return Line(line.file, line.line, name)
                uses = (_uses(each, named) for each in body if each is not made)
                found = {part.lineno for parts in uses for part in parts}
                return Line(line.file, found.pop(), name) if len(found) == 1 else None
    return None


def _function_name(statement: ast.stmt, line: int) -> str:
    """The name of the function that a statement makes at a line; empty: none."""
    if isinstance(statement, ast.FunctionDef):
        return statement.name if statement.lineno == line else ""
    nodes = own_nodes(statement)
    made = [
        each for each in nodes if isinstance(each, ast.Lambda) and each.lineno == line
    ]
    if isinstance(statement, ast.Assign) and statement.value in made:
        return last_name(statement.targets[0])
    return _UNNAMED if made else ""


def _uses(statement: ast.stmt, name: str) -> list[ast.Name]:
    names = (part for part in ast.walk(statement) if isinstance(part, ast.Name))
    return [each for each in names if each.id == name]


def keeps_old(line: Line, names: set[str]) -> bool:
    """Whether a line binds what has one of these names to something made of it."""
    found: ast.stmt | None = statement(line.file, line.line)
    if isinstance(found, ast.AugAssign):
        return True
    if not isinstance(found, (ast.Assign, ast.AnnAssign)) or found.value is None:
        return found is not None and not isinstance(found, (ast.For, ast.With))
    return any(last_name(part) in names for part in ast.walk(found.value))


def _in_functions(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each node, and the name of the function that it is in."""
    rest: list[tuple[str, ast.AST]] = [("", tree)]
    while rest:
        function, node = rest.pop(0)
        yield function, node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        rest += ((function, child) for child in ast.iter_child_nodes(node))


def _puts(node: ast.AST, name: str, binds: bool, is_attribute: bool) -> bool:
    if isinstance(node, ast.AugAssign):
        return last_name(node.target) == name
    if isinstance(node, ast.Assign):
        return any(
            last_name(target) == name
            and (binds or isinstance(target, ast.Subscript))
            and not (is_attribute and isinstance(target, ast.Name))
            for whole in node.targets
            for target in (whole.elts if isinstance(whole, ast.Tuple) else [whole])
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    adds = node.func.attr in _ADDING and bool(node.args)
    return adds and last_name(node.func.value) == name


def last_name(node: ast.AST) -> str:
    """The last name of ``a``, ``x.a``, ``x.a[i]``; empty for anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
