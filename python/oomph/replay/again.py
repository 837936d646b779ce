"""Compiles statements of a program so that they run again, with variables of ours."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from oomph.replay.statements import Stretch

AGAIN = "__oomph_again__"  # the function that runs statements again
_GIVEN = "__oomph_given__"
_END = "__oomph_end__"  # of the name of what shows that the last statement ran

Run = Callable[[dict[str, Any]], tuple[dict[str, Any] | None, Any]]


def compiled(stretch: Stretch, first: int) -> Run:
    """A function that runs statements again, from one of them on.

    Args:
        stretch: The statements.
        first: Index of the statement to begin with.

    Returns:
        It takes the variables of the frame, and gives them as they are after the last
        statement; None if the statements returned, and what.
    """
    if stretch.is_of_module:
        return _compiled_for_module(stretch, first)
    return _compiled_for_function(stretch, first)


def _once(stretch: Stretch, first: int) -> ast.stmt:
    """A loop of one iteration, so that ``break`` and ``continue`` have their sense.

    What it is in is entered again.
    """
    loop: ast.stmt = ast.For(
        target=ast.Name("__oomph_turn__", ast.Store()),
        iter=ast.Tuple([ast.Constant(0)], ast.Load()),
        body=list(stretch.body[first:]),
        orelse=[],
        type_comment=None,
    )
    for outer in reversed(stretch.around):
        loop = ast.With(outer.items, [loop], None)
    return loop


def _compiled_for_module(stretch: Stretch, first: int) -> Run:
    tree = ast.Module([_once(stretch, first)], [])
    code = _compile(tree, stretch.frame)

    def run(names: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        variables = stretch.frame.f_globals
        if names is not variables:
            variables.update(names)
        exec(code, variables)
        return variables, None

    return run


def _compiled_for_function(stretch: Stretch, first: int) -> Run:
    frame, code = stretch.frame, stretch.frame.f_code
    outer = _declared(stretch.body, ast.Global)
    inner = _declared(stretch.body, ast.Nonlocal)
    known = [*code.co_varnames, *code.co_cellvars, *code.co_freevars]
    names = [n for n in dict.fromkeys(known) if n.isidentifier()]
    names = [name for name in names if name != "__class__"]

    def run(values: dict[str, Any]) -> tuple[dict[str, Any] | None, Any]:
        given = [n for n in names if n in values and n not in outer]
        call = ast.Call(ast.Name("locals", ast.Load()), [], [])
        end = ast.Tuple([ast.Constant(_END), call], ast.Load())
        body: list[ast.stmt] = [ast.Global(sorted(outer))] if outer else []
        # Arguments would live as long as the call does.
        body += [_parsed(f"{name} = {_GIVEN}.pop({name!r})") for name in given]
        body += [_once(stretch, first), ast.Return(end)]
        function = _define(AGAIN, [_GIVEN], body)
        cell = ast.Return(ast.Name(AGAIN, ast.Load()))
        maker = _define("__oomph_make__", ["__class__"], [function, cell])
        plain = _without(ast.Module([maker], []), inner)
        tree = _Mangled(_class_of(code)).visit(plain)
        found: dict[str, Any] = {}
        exec(_compile(tree, frame), frame.f_globals, found)
        again = found["__oomph_make__"](values.get("__class__"))
        result = again(values)
        if isinstance(result, tuple) and len(result) == 2 and result[0] == _END:
            return {n: v for n, v in result[1].items() if n in names}, None
        return None, result

    return run


def _declared(
    body: tuple[ast.stmt, ...], kind: type[ast.Global] | type[ast.Nonlocal]
) -> set[str]:
    found: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Global | ast.Nonlocal) and isinstance(node, kind):
                found.update(node.names)
    return found


def _without(tree: ast.Module, nonlocals: set[str]) -> ast.Module:
    """Variables of functions around are plain variables here."""
    if nonlocals:
        for node in ast.walk(tree):
            for _, value in ast.iter_fields(node):
                if isinstance(value, list):
                    value[:] = [v for v in value if not isinstance(v, ast.Nonlocal)]
    return tree


def _define(name: str, arguments: list[str], body: list[ast.stmt]) -> ast.stmt:
    found = _parsed(f"def {name}({', '.join(arguments)}): pass")
    assert isinstance(found, ast.FunctionDef)
    found.body = body
    return found


def _parsed(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _compile(tree: ast.Module, frame: FrameType) -> CodeType:
    ast.fix_missing_locations(tree)
    return compile(tree, frame.f_code.co_filename, "exec", dont_inherit=True)


def _class_of(code: CodeType) -> str:
    """The name of the class whose method it is; "" if it is none."""
    parts = getattr(code, "co_qualname", code.co_name).split(".")
    return parts[-2] if len(parts) > 1 and parts[-2] != "<locals>" else ""


class _Mangled(ast.NodeTransformer):
    """Names with two underscores, as a class's body has them."""

    def __init__(self, owner: str) -> None:
        self.prefix = f"_{owner.lstrip('_')}" if owner else ""

    def _name(self, name: str) -> str:
        is_private = name.startswith("__") and not name.endswith("__")
        return self.prefix + name if is_private and self.prefix else name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """An attribute."""
        node.attr = self._name(node.attr)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A variable."""
        node.id = self._name(node.id)
        return node
