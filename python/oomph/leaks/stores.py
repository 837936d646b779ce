"""Which line of the user's put something where it is held.

References tell what holds a tensor, not who put it there. The holder has a name,
though, and the user's source says where something is put under that name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from oomph.leaks import source
from oomph.leaks.source import Line, last_name

_ADDING = frozenset(
    # fmt: off
    [
        "append",
        "appendleft",
        "add",
        "extend",
        "extendleft",
        "insert",
        "update",
        "setdefault",
        "put",
        "put_nowait",
        "push",
    ]
    # fmt: on
)
_LOOKING_UP = frozenset(["get", "setdefault"])
_SHRINKING = frozenset(["pop", "popleft", "popitem", "clear", "remove"])
_ALIASES_MAX = 16
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Store:
    """A statement that puts something under a name, or takes something away."""

    name: str
    kind: str  # "item": into it; "bind": it is made anew; "shrink": out of it
    line: Line
    in_loop: bool = False
    attribute: bool = False  # the name is one of an object
    guarded: bool = False  # only for a key that is not there: a cache


class _Finder(ast.NodeVisitor):
    """Collects the stores of a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Store] = []
        self.aliases: list[tuple[str, str]] = []  # of the first, the second is another
        self.parameters: dict[str, list[str]] = {}  # of functions, by their names
        self.passed: list[tuple[str, int | str, str]] = []  # function, place, name
        self._function = ""
        self._loops = 0
        self._tested: list[str] = []  # names that `if … in name` around it asks
        self._looked_up: set[tuple[str, str]] = set()  # function, name: name.get(…)

    def read(self, tree: ast.Module) -> _Finder:
        """Collects; gives itself."""
        self.visit(tree)
        self.found = [
            replace(store, guarded=True)
            if (store.line.function, store.name) in self._looked_up
            else store
            for store in self.found
        ]
        return self

    def limits(self, store: Store, function: str, everywhere: bool) -> bool:
        """Whether it takes away, again and again, what a function puts in."""
        inside = store.line.function
        if store.kind == "bind":
            return store.in_loop and inside == function
        if inside != function:
            return everywhere or store.name in self.parameters.get(inside, [])
        return store.in_loop or store.attribute

    def _add(self, target: ast.AST, kind: str, at: ast.AST) -> None:
        name = last_name(target)
        if name:
            line = Line(self.file, getattr(at, "lineno", 0), self._function)
            attribute = isinstance(target, ast.Attribute)
            guarded = name in self._tested
            self.found.append(
                Store(name, kind, line, self._loops > 0, attribute, guarded)
            )

    def visit_If(self, node: ast.If) -> None:
        tested = [
            last_name(side)
            for test in ast.walk(node.test)
            if isinstance(test, ast.Compare)
            and any(isinstance(op, (ast.In, ast.NotIn)) for op in test.ops)
            for side in test.comparators
        ]
        self._tested += tested
        self.generic_visit(node)
        del self._tested[len(self._tested) - len(tested) :]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self._function, self._loops
        self._function, self._loops = node.name, 0
        names = [argument.arg for argument in node.args.args]
        self.parameters[node.name] = names[1:] if names[:1] == ["self"] else names
        self.generic_visit(node)
        self._function, self._loops = outer

    def generic_visit(self, node: ast.AST) -> None:
        loops = isinstance(node, _LOOPS)
        self._loops += loops
        super().generic_visit(node)
        self._loops -= loops

    def _bind(self, target: ast.AST, at: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._bind(part, at)
        elif isinstance(target, ast.Subscript):
            self._add(target, "item", at)
        else:
            self._add(target, "bind", at)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node)
            if isinstance(node.value, (ast.Name, ast.Attribute)):
                self.aliases.append((last_name(node.value), last_name(target)))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node.target, "item", node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._add(target, "shrink", node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in _ADDING:
                self._add(node.func.value, "item", node)
            if node.func.attr in _LOOKING_UP:
                self._looked_up.add((self._function, last_name(node.func.value)))
            if node.func.attr in _SHRINKING:
                self._add(node.func.value, "shrink", node)
            elif node.func.attr == "__setitem__":
                self._add(node.func.value, "item", node)
        called = last_name(node.func)
        for place, argument in enumerate(node.args):
            self.passed.append((called, place, last_name(argument)))
        for keyword in node.keywords:
            self.passed.append((called, keyword.arg or "", last_name(keyword.value)))
        self.generic_visit(node)


def _read(files: Iterable[str]) -> Iterator[_Finder]:
    for file in files:
        tree = source.tree(file)
        if tree is not None:
            yield _Finder(file).read(tree)


def _other_names(name: str, finders: list[_Finder]) -> Iterator[str]:
    """Names that the same thing has elsewhere: as an argument, or by assignment."""
    parameters: dict[str, list[str]] = {}
    for finder in finders:
        parameters.update(finder.parameters)
    for finder in finders:
        for of, alias in finder.aliases:
            if of == name and alias:
                yield alias
        for function, place, argument in finder.passed:
            names = parameters.get(function, [])
            if argument != name:
                continue
            if isinstance(place, str):
                yield place
            elif place < len(names):
                yield names[place]


class Stores:
    """What the user's files say about names.

    The nearest file that has an answer gives it; those after it may not be read.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._rest = _read(files)
        self._known: list[_Finder] = []

    def _finders(self) -> Iterator[_Finder]:
        yield from self._known
        for finder in self._rest:
            self._known.append(finder)
            yield finder

    def _of(self, name: str, kind: str) -> list[Store]:
        """Those of the nearest file that has any."""
        for finder in self._finders():
            found = [s for s in finder.found if s.name == name and s.kind == kind]
            if found:
                return found
        return []

    def _names(self, name: str) -> Iterator[str]:
        yield name
        names = [name]
        for known in names:  # grows as it goes
            for other in _other_names(known, list(self._finders())):
                if other not in names and len(names) < _ALIASES_MAX:
                    names.append(other)
                    yield other

    def into(self, name: str, attribute: bool = False) -> Store | None:
        """Where something is put into what has this name, here or under another.

        Args:
            name: Of a variable, or of an attribute.
            attribute: Only an attribute will do.
        """
        for known in self._names(name):
            found = [s for s in self._of(known, "item") if s.attribute or not attribute]
            if found:
                return max(found, key=lambda store: store.in_loop)
        return None

    def binding(self, name: str) -> Store | None:
        """Where this name is given; in a loop rather than before it."""
        found = self._of(name, "bind")
        return max(found, key=lambda store: store.in_loop) if found else None

    def first(self, name: str) -> Store | None:
        """Where this name is given first."""
        found = self._of(name, "bind")
        return min(found, key=lambda store: store.line.line) if found else None

    def attribute(self, name: str) -> Store | None:
        """Where an object's attribute is given from outside of what makes it."""
        found = [store for store in self._of(name, "bind") if store.attribute]
        outside = [store for store in found if store.line.function != "__init__"]
        return (outside or found or [None])[0]  # type: ignore[list-item]

    def is_bounded(self, store: Store, everywhere: bool) -> bool:
        """Whether the same file takes out again what the store puts in.

        Args:
            store: What puts something in.
            everywhere: The name is an attribute or a module's global: what any function
                takes out counts. Otherwise it is a function's own variable, and what is
                taken out after all loops does not bound it.
        """
        for finder in self._known:
            if finder.file != store.line.file:
                continue
            for other in finder.found:
                if other.kind not in ("shrink", "bind"):
                    continue
                if other.name in self._names(store.name) and finder.limits(
                    other, store.line.function, everywhere
                ):
                    return True
        return False
