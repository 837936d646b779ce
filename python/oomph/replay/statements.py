"""Which statements of a program make up the step that it is in.

A step is a stretch of statements of one function: the body of a loop, or of the
function. Seen from what runs now, several come into question, from the innermost to the
outermost; which is a step shows when it runs again.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import inspect
import linecache
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

from oomph.memory import sites

_FRAMES_MAX = 24  # that are looked at
_LEAP_MAX = 129  # iterations ahead: gradients are accumulated over fewer
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.Module)
_FILLING = frozenset(("append", "appendleft", "add", "extend", "insert", "update"))


@dataclass(frozen=True)
class Stretch:
    """The statements of one body, in a frame that runs one of them.

    Attributes:
        frame: That runs it, or ran it when an exception came.
        inner: The frames of the calls that it waited for.
        body: All statements of the body.
        now: Index of the one that runs.
        is_loop: Whether the body is that of a loop.
        repeats: Whether it is in a loop, be that in a function further out.
        is_called: Whether only loops of libraries are further out, and one of these
            knows PyTorch, as trainers do.
        line: Number of its first line.
        around: The ``with`` statements that it is in, the outermost first.
        target: What a ``for`` loop assigns in each iteration.
        iterable: What it goes through.
    """

    frame: FrameType
    inner: tuple[FrameType, ...]
    body: tuple[ast.stmt, ...]
    now: int
    is_loop: bool
    repeats: bool
    line: int
    around: tuple[ast.With, ...] = ()
    target: ast.expr | None = None
    iterable: ast.expr | None = None
    is_called: bool = False

    @property
    def is_of_module(self) -> bool:
        """Whether its variables are those of a module."""
        return self.frame.f_code.co_name == "<module>"

    @property
    def is_script(self) -> bool:
        """Whether it is the whole of a file's own statements."""
        return not self.is_loop and self.is_of_module

    def names(self) -> set[str]:
        """Of all variables that the statements name, and those a loop assigns."""
        nodes = (node for statement in self.body for node in ast.walk(statement))
        return {node.id for node in nodes if isinstance(node, ast.Name)}

    def calls(self, method: str) -> bool:
        """Whether a method of that name is called in it."""
        nodes = (node for statement in self.body for node in ast.walk(statement))
        calls = (node.func for node in nodes if isinstance(node, ast.Call))
        return any(isinstance(f, ast.Attribute) and f.attr == method for f in calls)

    def bound_first(self, first: int) -> set[str]:
        """Of the variables that statements from one on bind before they read them."""
        order = _Order()
        for statement in self.body[first:]:
            order.visit(statement)
        return {name for name, is_bound in order.known.items() if is_bound}

    def undone(self) -> int:
        """Index of the statement from which on the one that runs has changed nothing.

        A loop that has come half-way has bound variables anew, and filled lists: those
        before it that make these run again, too, if they are of this body.
        """
        nodes = [*ast.walk(self.body[self.now])]
        changed = {name for node in nodes for name in _changed(node)}
        within = [node.target for node in nodes if isinstance(node, ast.comprehension)]
        changed -= {name for node in within for name in _changed(node)}
        for first in range(self.now, -1, -1):
            if not changed - self.bound_first(first):
                return first
        return self.now

    def unbound(self) -> set[str]:
        """Its variables that have no value as it begins: of a function all but some."""
        code = self.frame.f_code
        if self.is_loop or self.is_of_module:
            return set()
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS)
        count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
        arguments = {*code.co_varnames[:count]}
        return {*code.co_varnames, *code.co_cellvars} - arguments

    def leaps(self, values: dict[str, Any]) -> list[dict[str, int]]:
        """Turns to come in which a comparison is true that has not been so far.

        Such as ``(step + 1) % 4 == 0``, by what the loop counts.

        Args:
            values: The variables, as they are in this iteration.

        Returns:
            What the counting variables are then, the next such iteration first.
        """
        nodes = ast.walk(self.target) if self.target is not None else ()
        named = {node.id for node in nodes if isinstance(node, ast.Name)}
        counted = {n: values[n] for n in named if type(values.get(n)) is int}
        conditions = [*self._comparisons(counted.keys())] if counted else []
        seen = _true_of(conditions, values, self.frame)
        found = []
        for ahead in range(1, _LEAP_MAX):
            then = {name: value + ahead for name, value in counted.items()}
            true = _true_of(conditions, {**values, **then}, self.frame)
            if true - seen:
                found.append(then)
            seen |= true
        return found

    def _comparisons(self, names: Set[str]) -> Iterator[CodeType]:
        """Those of its statements that depend on some variables, and call nothing."""
        for node in (n for statement in self.body for n in ast.walk(statement)):
            if not isinstance(node, ast.Compare):
                continue
            parts = [*ast.walk(node)]
            used = {part.id for part in parts if isinstance(part, ast.Name)}
            if used & names and all(map(changes_nothing, parts)):
                tree = ast.Expression(node)
                yield compile(tree, self.frame.f_code.co_filename, "eval")

    def after(self, line: int) -> int:
        """Index of the first statement behind a line."""
        return sum(statement.lineno <= line for statement in self.body)


def stack_of(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The frames that an exception passed, and those below, with the lines they ran.

    Returns:
        The innermost first.
    """
    found: list[tuple[FrameType, int]] = []
    below = traceback.tb_frame.f_back if traceback is not None else None
    while traceback is not None:
        found.insert(0, (traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    while below is not None:
        found.append((below, below.f_lineno))
        below = below.f_back
    return found


def stretches(stack: list[tuple[FrameType, int]]) -> list[Stretch]:
    """Those that a stack is in, the innermost first.

    None within calls of modules, or where one is made.
    """
    import torch.nn.modules.module as modules

    files = [frame.f_code.co_filename for frame, _ in stack]
    calls = [i for i, file in enumerate(files) if file == modules.__file__]
    makes = [i for i, (frame, _) in enumerate(stack) if makes_module(frame)]
    first = max([*calls[-1:], *makes[-1:]], default=-1) + 1
    inner = [frame for frame, _ in stack[:first]]
    own = __name__.partition(".")[0]
    found: list[Stretch] = []
    for frame, line in stack[first : first + _FRAMES_MAX]:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in (own, "torch") and name not in sys.stdlib_module_names:
            found += _of_frame(frame, line, tuple(inner))
        inner.append(frame)
    repeats = called = False
    for i, stretch in reversed([*enumerate(found)]):
        repeats |= stretch.is_loop and sites.is_user(stretch.frame.f_code.co_filename)
        found[i] = dataclasses.replace(
            stretch,
            repeats=repeats or stretch.is_loop,
            is_called=called and not repeats,
        )
        called |= stretch.is_loop and "torch" in stretch.frame.f_globals
    return found


def moves_module(frame: FrameType) -> bool:
    """Whether it brings a module to another device, or changes its type."""
    import torch.nn.modules.module as modules

    code = frame.f_code
    return code.co_name == "_apply" and code.co_filename == modules.__file__


def makes_module(frame: FrameType) -> bool:
    """Whether it is the ``__init__`` of a module."""
    from torch import nn

    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return False
    return isinstance(frame.f_locals.get(code.co_varnames[0]), nn.Module)


def take_variables(frame: FrameType, is_inner: bool = False) -> dict[str, Any]:
    """Takes them from a frame that will not run any more: only the result has them.

    Those of a module are its own still; and those that functions within use theirs,
    but for what has a graph, unless the functions are gone, too.

    Args:
        frame: Whose variables.
        is_inner: Whether it is a call within the statements, which they make anew.
    """
    if frame.f_code.co_name == "<module>":
        return frame.f_globals
    fast = frame.f_locals  # read once: each time copies them anew
    names = dict(fast)
    for name in names.keys() - {*frame.f_code.co_freevars}:  # those are of others, too
        is_shared = name in frame.f_code.co_cellvars and not is_inner
        if not is_shared or getattr(names[name], "grad_fn", None) is not None:
            fast[name] = None
    if sys.version_info < (3, 13):  # from then on it is no copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
        fast.clear()  # the copy stays with the frame, and has those of others, too
    with contextlib.suppress(RuntimeError):  # it still runs
        frame.clear()
    return names


def _of_frame(
    frame: FrameType, line: int, inner: tuple[FrameType, ...]
) -> Iterator[Stretch]:
    code = frame.f_code
    if code.co_flags & _GENERATORS:
        return
    lines = linecache.getlines(code.co_filename, frame.f_globals)
    try:
        tree: ast.AST | None = ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        return
    if tree is not None and code.co_name != "<module>":
        tree = _function(tree, code)
    if tree is None:
        return
    yield from reversed([*_bodies(tree, frame, line, inner)])


def _function(tree: ast.AST, code: CodeType) -> ast.AST | None:
    if code.co_name == "<lambda>":
        line = code.co_firstlineno
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda)]
        found = [node for node in found if node.lineno == line]
        return _as_function(found[0]) if len(found) == 1 else None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            lines = [node.lineno, *(d.lineno for d in node.decorator_list)]
            if min(lines) == code.co_firstlineno:
                return node
    return None


def _as_function(node: ast.Lambda) -> ast.stmt:
    result = ast.copy_location(ast.Return(node.body), node)
    function = ast.FunctionDef("lambda_", node.args, [result], [], None, None)
    return ast.copy_location(function, node)


def _bodies(
    owner: ast.AST,
    frame: FrameType,
    line: int,
    inner: tuple[FrameType, ...],
    around: tuple[ast.With, ...] = (),
) -> Iterator[Stretch]:
    """Those that the frame is in, the outermost first."""
    found: tuple[list[ast.stmt], int] | None = None
    for body in _lists(owner):
        for i, statement in enumerate(body):
            if statement.lineno <= line <= (statement.end_lineno or 0):
                found = body, i
    if found is None:
        return
    body, i = found
    if isinstance(owner, LOOPS + _FUNCTIONS):
        is_loop = isinstance(owner, LOOPS)
        first = body[0].lineno
        target = iterable = None
        if isinstance(owner, ast.For) and body is owner.body:
            target, iterable = owner.target, owner.iter
        yield Stretch(
            frame,
            inner,
            tuple(body),
            i,
            is_loop,
            is_loop,
            first,
            around,
            target,
            iterable,
        )
    statement = body[i]
    if isinstance(statement, ast.With):
        around = (*around, statement)
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield from _bodies(statement, frame, line, inner, around)


def _lists(owner: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        value = getattr(owner, name, None)
        if isinstance(value, list):
            yield value
    for part in [*getattr(owner, "handlers", ()), *getattr(owner, "cases", ())]:
        yield part.body


def changes_nothing(node: ast.AST) -> bool:
    """Whether a part of an expression may be looked at: it calls no more than len()."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len"
    return not isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)


def _true_of(
    conditions: list[CodeType], values: dict[str, Any], frame: FrameType
) -> set[CodeType]:
    """Those that are true; a condition about tensors, or of no sense, is not."""
    found = set()
    for condition in conditions:
        with contextlib.suppress(Exception):
            if eval(condition, frame.f_globals, values) is True:
                found.add(condition)
    return found


def _changed(node: ast.AST) -> Iterator[str]:
    """The variables that an expression binds, or fills."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    is_item = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    is_filled = isinstance(node, ast.Attribute) and node.attr in _FILLING
    filled = getattr(node, "value", None) if is_item or is_filled else None
    if isinstance(filled, ast.Name):
        yield filled.id


class _Order(ast.NodeVisitor):
    """Whether a variable is first bound or first read, as statements run."""

    def __init__(self) -> None:
        self.known: dict[str, bool] = {}

    def visit_Name(self, node: ast.Name) -> None:
        """A variable."""
        self.known.setdefault(node.id, isinstance(node.ctx, ast.Store))

    def visit_Assign(self, node: ast.Assign) -> None:
        """What is assigned comes before what it is assigned to."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """It is read."""
        if isinstance(node.target, ast.Name):
            self.known.setdefault(node.target.id, False)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        """What it runs over comes first."""
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)
