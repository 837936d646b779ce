"""The same script with other names, or nested: what it does stays the same."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator

import torch

_KNOWN = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, dict, list, deque)
_KEPT = {"self", "Out"}  # IPython's name for the values of cells


def renamed(source: str) -> str:
    """Gives every name that the script makes another; comments stay in their lines."""
    tree = ast.parse(source)
    own = _own_names(tree, source)
    lines = source.splitlines()
    for row, column, name, new in sorted(_places(tree, lines, own), reverse=True):
        line = lines[row - 1]
        assert line[column : column + len(name)] == name, (line, name)
        lines[row - 1] = line[:column] + new + line[column + len(name) :]
    return "\n".join(lines) + "\n"


def _own_names(tree: ast.Module, source: str) -> dict[str, str]:
    names: set[str] = set()
    in_texts: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and "\n" in str(node.value):
            in_texts.update(re.findall(r"\w+", str(node.value)))
    known = {name for name in names if any(hasattr(kind, name) for kind in _KNOWN)}
    imported = set(re.findall(r"\w+", " ".join(re.findall(r"import (.*)", source))))
    mine = sorted(names - known - imported - in_texts - _KEPT - {"head", "_"})
    return {name: f"zoo{place}{name[::-1]}" for place, name in enumerate(mine)}


def _places(
    tree: ast.Module, lines: list[str], own: dict[str, str]
) -> Iterator[tuple[int, int, str, str]]:
    """Where the names stand: row, column, name, new name."""
    for node in ast.walk(tree):
        name, row, column = "", getattr(node, "lineno", 0), 0
        if isinstance(node, ast.Name):
            name, column = node.id, node.col_offset
        elif isinstance(node, ast.arg):
            name, column = node.arg, node.col_offset
        elif isinstance(node, ast.Attribute):
            name = node.attr
            row, column = node.end_lineno or 0, (node.end_col_offset or 0) - len(name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = node.name
            column = lines[row - 1].index(name, node.col_offset + 3)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            name, column = node.name, lines[row - 1].rindex(node.name)
        if name in own:
            yield row, column, name, own[name]


def nested(source: str) -> str:
    """Moves what the script does into a function that a class of a module calls."""
    tree = ast.parse(source)
    lines = source.splitlines()
    doing = next(
        node
        for node in tree.body[1:]
        if isinstance(node, ast.For)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    )
    place = tree.body.index(doing)
    before = _bound(tree.body[:place])
    outer = sorted(before & _bound(tree.body[place:]))
    head, body = lines[: doing.lineno - 1], lines[doing.lineno - 1 :]
    moved = [f"        {line}" if line else line for line in body]
    return "\n".join(
        [
            *head,
            "from runner import Runner",
            "class Outer:",
            "    def everything(self):",
            *(f"        global {name}" for name in outer),
            *moved,
            "Runner(Outer().everything).run()",
            "",
        ]
    )


def _bound(body: list[ast.stmt]) -> set[str]:
    """The names that statements give, outside of functions and classes."""
    found = set()
    for statement in body:
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
    return found
