"""How many iterations a loop has, read off its source and the program's variables."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import TypeGuard

from oomph.replay.statements import LOOPS, Stretch, changes_nothing

_AS_LONG = ("enumerate", "reversed", "sorted", "list", "tuple")  # as what they get


def turns(stretch: Stretch) -> int:
    """How many iterations the loop has, if the program need not run to tell.

    Returns:
        0: that is unknown, or it may end before.
    """
    iterable = stretch.iterable
    is_open = any(isinstance(n, ast.Break) for part in stretch.body for n in _own(part))
    if iterable is None or is_open:
        return 0
    while _is_call(iterable, _AS_LONG):
        iterable = iterable.args[0]
    if _is_call(iterable, ("range",)) and not iterable.keywords:
        parts = [*iterable.args]
    else:
        parts = [iterable]
    if not all(changes_nothing(node) for part in parts for node in ast.walk(part)):
        return 0
    tree = ast.Expression(ast.Tuple(parts, ast.Load()))
    code = compile(ast.fix_missing_locations(tree), "<iterable>", "eval")
    with contextlib.suppress(Exception):
        found = eval(code, stretch.frame.f_globals, stretch.frame.f_locals)
        return len(found[0] if parts == [iterable] else range(*found))
    return 0


def _is_call(node: ast.expr, names: tuple[str, ...]) -> TypeGuard[ast.Call]:
    """Whether a function of such a name is called."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id in names and bool(node.args)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Of a statement all parts, but of loops and functions within."""
    yield node
    if not isinstance(node, (*LOOPS, ast.FunctionDef, ast.ClassDef)):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)
