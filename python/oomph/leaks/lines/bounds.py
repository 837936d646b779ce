"""Whether the code says that a place is emptied, or filled only up to a bound.

What it says is no proof: the condition may never hold, the function may never be
called. So it only delays what is said of memory that grows.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from oomph.holders.lines import Line
from oomph.leaks.lines import source
from oomph.leaks.lines.source import last_name

_TAKING = frozenset(("pop", "popleft", "popitem", "clear", "remove", "discard"))
_LOOKING_UP = frozenset(("get", "setdefault"))
_SIZES = frozenset(("len", "numel", "size", "shape", "qsize", "nbytes"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def is_bounded(line: Line, names: set[str]) -> bool:
    """Whether something speaks for an end of the growth.

    Args:
        line: That puts something in.
        names: What is filled there, as it and others call it.
    """
    running = frozenset((line.function, *source.running_functions()))
    return _is_bounded(line, frozenset(names), running)


@functools.lru_cache(maxsize=256)
def is_capped(line: Line, names: frozenset[str]) -> bool:
    """Whether a line runs only as long as the place has fewer items than something.

    Args:
        line: That puts something in.
        names: What is filled there.
    """
    tree = source.tree(line.file)
    return tree is not None and any(
        _compares_length(test, names) for test in _guards(_around(tree, line.line))
    )


def _compares_length(test: ast.Compare, names: frozenset[str]) -> bool:
    """``len(x) < size``, but not ``len(x) > 0``."""
    if not all(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in test.ops):
        return False
    sides = [test.left, *test.comparators]
    lengths = [
        side
        for side in sides
        if isinstance(side, ast.Call)
        and last_name(side.func) == "len"
        and any(last_name(argument) in names for argument in side.args)
    ]
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return bool(lengths) and not any(value in (0, 1) for value in values)


def _guards(outer: list[ast.AST]) -> Iterator[ast.Compare]:
    """Of the nodes that a line is in, what its function compares before it runs."""
    functions = [i for i, node in enumerate(outer) if isinstance(node, _FUNCTIONS)]
    for node in outer[functions[-1] if functions else 0 :]:
        if isinstance(node, ast.If):
            yield from (n for n in ast.walk(node.test) if isinstance(n, ast.Compare))


@functools.lru_cache(maxsize=256)
def _is_bounded(line: Line, names: frozenset[str], running: frozenset[str]) -> bool:
    tree = source.tree(line.file)
    if tree is None:
        return False
    outer = _around(tree, line.line)
    if _is_guarded(outer, names) or _is_cut(outer[-1]):
        return True
    functions = [node for node in outer if isinstance(node, _FUNCTIONS)]
    inside: ast.AST = functions[-1] if functions else tree
    return _looks_up(inside, names) or any(_empties(tree, names, line, running))


def _around(tree: ast.AST, line: int) -> list[ast.AST]:
    """The nodes that a line is in, the innermost statement last."""
    found: list[ast.AST] = [tree]
    while True:
        inner = [
            node
            for node in _statements(found[-1])
            if node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not inner:
            return found
        found.append(inner[-1])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(child)


def _is_guarded(outer: list[ast.AST], names: frozenset[str]) -> bool:
    """Whether it happens only for a new key, or as long as something is small."""
    return any(_asks(test, names) for test in _guards(outer))


def _asks(test: ast.Compare, names: frozenset[str]) -> bool:
    sides = [test.left, *test.comparators]
    if any(isinstance(op, (ast.In, ast.NotIn)) for op in test.ops):
        return any(last_name(side) in names for side in sides)
    if not any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in test.ops):
        return False
    parts = [part for side in sides for part in ast.walk(side)]
    return any(last_name(part) in _SIZES for part in parts) or any(
        isinstance(side, ast.Constant) for side in sides
    )


def _is_cut(statement: ast.AST) -> bool:
    """``x = join(x, y)[-100:]``."""
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)


def _looks_up(function: ast.AST, names: frozenset[str]) -> bool:
    """Whether the function asks for what is there before it adds: a cache."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            by_key = node.func.attr in _LOOKING_UP and bool(node.args)
            if by_key and last_name(node.func.value) in names:
                return True
    return False


def _empties(
    tree: ast.Module, names: frozenset[str], line: Line, running: frozenset[str]
) -> Iterator[bool]:
    """For each statement of the file: whether it takes something out of one of these.

    Variables of functions that neither run nor contain the line are other variables.
    """
    stack: list[tuple[ast.AST, str, bool, bool]] = []
    for part in tree.body:
        is_near = part.lineno <= line.line <= (part.end_lineno or 0)
        is_other = isinstance(part, (*_FUNCTIONS, ast.ClassDef)) and not is_near
        near = not is_other or getattr(part, "name", "") in running
        stack.append((part, "", False, near))
    while stack:
        node, function, in_loop, near = stack.pop()
        known = _Known(names, near)
        again = in_loop or function != line.function  # not once, after all is done
        if isinstance(node, ast.Call):
            yield again and _takes(node, known)
        elif isinstance(node, ast.Delete):
            yield again and any(map(known.means, node.targets))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            elsewhere = function not in ("__init__", "", line.function)
            yield node.lineno != line.line and _resets(node, known, elsewhere, in_loop)
        if isinstance(node, _FUNCTIONS):
            function, in_loop = getattr(node, "name", "<lambda>"), False
        in_loop = in_loop or isinstance(node, _LOOPS)
        inner = ast.iter_child_nodes(node)
        stack += ((child, function, in_loop, near) for child in inner)


@dataclass(frozen=True)
class _Known:
    """Names that mean the place: attributes everywhere, variables where they live."""

    names: frozenset[str]
    near: bool

    def means(self, node: ast.AST) -> bool:
        """Whether an expression is the place, or in it."""
        base = node
        while isinstance(base, ast.Subscript):
            base = base.value
        is_seen = isinstance(base, ast.Attribute) or self.near
        return is_seen and last_name(node) in self.names


def _takes(call: ast.Call, known: _Known) -> bool:
    """``x.pop()``, ``queue.get()``, ``heappop(x)``."""
    if isinstance(call.func, ast.Attribute) and known.means(call.func.value):
        empty = not call.args and call.func.attr in ("get", "get_nowait")
        return empty or call.func.attr in _TAKING
    is_heap = last_name(call.func).startswith("heap")
    return is_heap and any(map(known.means, call.args))


def _resets(
    node: ast.Assign | ast.AnnAssign, known: _Known, elsewhere: bool, in_loop: bool
) -> bool:
    """Whether it binds one of these to something else, again and again."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    targets = [t for t in targets if isinstance(t, (ast.Name, ast.Attribute))]
    meant = [target for target in targets if known.means(target)]
    if not meant or node.value is None:
        return False
    keeps = any(map(known.means, ast.walk(node.value)))
    if keeps and not _is_cut(node):
        return False
    return elsewhere if isinstance(meant[0], ast.Attribute) else in_loop
