"""What a file's statements put where: into which variable or attribute.

A variable is known by its file, the function that it belongs to, and its name; an
attribute by its name alone.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from oomph.leaks.source import Line, last_name

_ADDING = frozenset(("append", "appendleft", "add", "extend", "extendleft", "insert"))
_ADDING |= {"update", "setdefault", "put", "put_nowait", "push", "__setitem__"}
_SHRINKING = frozenset(("pop", "popleft", "popitem", "clear", "remove"))
_LOOKING_UP = frozenset(("get", "setdefault"))
_LOOPS = (ast.For, ast.AsyncFor, ast.While)

Variable = tuple[str, str, str]  # file, function with those around it, name
ATTRIBUTE = "."  # stands for the file and the function of an attribute


@dataclass(frozen=True)
class Store:
    """A statement that puts something somewhere, or takes something away."""

    to: Variable
    kind: str  # "item": into it; "bind": it is made anew; "shrink": out of it
    line: Line
    owner: str = ""  # the class that the statement is in
    in_loop: bool = False
    guarded: bool = False  # only for a key that is not there: a cache

    @property
    def is_attribute(self) -> bool:
        """Whether it is about an object's attribute."""
        return self.to[0] == ATTRIBUTE


@dataclass
class _Scope:
    """A function, a class, or (without a name) the module."""

    name: str = ""
    is_class: bool = False
    bound: set[str] = field(default_factory=set)


class Statements(ast.NodeVisitor):
    """The stores of a file, and how the same thing gets other names in it."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.stores: list[Store] = []
        self.same: list[tuple[Variable, Variable]] = []  # the second is the first, too
        self.passed: list[tuple[Variable, str, int | str]] = []  # what, to whom, where
        self.parameters: dict[str, list[tuple[str, list[str]]]] = {}
        self._scopes = [_Scope()]
        self._loops = 0
        self._tested: list[Variable] = []  # that `if … in x` around a statement asks
        self._looked_up: set[tuple[str, Variable]] = set()  # function, x of x.get(…)
        self.visit(tree)
        self.stores = [
            replace(store, guarded=True)
            if (store.line.function, store.to) in self._looked_up
            else store
            for store in self.stores
        ]

    def variable(self, name: str, scope: str) -> Variable:
        """The variable that a function means by a name.

        Args:
            name: As the function uses it.
            scope: The function's name, with those around it.
        """
        known = {
            (inside, name)
            for functions in self.parameters.values()
            for inside, names in functions
            if name in names
        }
        known |= {store.to[1:] for store in self.stores if not store.is_attribute}
        parts = scope.split("/")
        while parts and ("/".join(parts), name) not in known:
            parts.pop()
        return self.file, "/".join(parts), name

    # ---- Names

    @property
    def _function(self) -> str:
        scope = self._scopes[-1]
        return "" if scope.is_class else scope.name

    def _path(self, count: int) -> str:
        scopes = self._scopes[1 : count + 1]
        return "/".join(scope.name for scope in scopes if not scope.is_class)

    def _meant(self, node: ast.AST) -> Variable | None:
        """What an expression names, if it does no more than that."""
        name = last_name(node)
        while isinstance(node, ast.Subscript):
            node = node.value
        if not name:
            return None
        if isinstance(node, ast.Attribute):
            return ATTRIBUTE, ATTRIBUTE, name
        for place in range(len(self._scopes) - 1, 0, -1):
            scope = self._scopes[place]
            if name in scope.bound and scope.is_class:
                return ATTRIBUTE, ATTRIBUTE, name
            if name in scope.bound:
                return self.file, self._path(place), name
        return self.file, "", name

    def _add(self, target: ast.AST, kind: str, at: ast.AST) -> None:
        meant = self._meant(target)
        if meant is not None:
            line = Line(self.file, getattr(at, "lineno", 0), self._function)
            owners = [scope.name for scope in self._scopes if scope.is_class]
            owner = owners[-1] if owners else ""
            guarded = meant in self._tested
            self.stores.append(
                Store(meant, kind, line, owner, self._loops > 0, guarded)
            )

    # ---- Scopes

    def _enter(self, node: ast.AST, scope: _Scope) -> None:
        outer, self._loops = self._loops, 0
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()
        self._loops = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        every = node.args.posonlyargs + node.args.args
        names = [argument.arg for argument in every]
        others = [a.arg for a in node.args.kwonlyargs]
        bound = {*names, *others} | _bound_in(node)
        self._scopes.append(_Scope(node.name))
        path = self._path(len(self._scopes) - 1)
        self._scopes.pop()
        taken = names[1:] if names[:1] in (["self"], ["cls"]) else names
        self.parameters.setdefault(node.name, []).append((path, taken + others))
        self._enter(node, _Scope(node.name, bound=bound))

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node, _Scope(node.name, True, _bound_in(node)))

    def generic_visit(self, node: ast.AST) -> None:
        loops = isinstance(node, _LOOPS)
        self._loops += loops
        super().generic_visit(node)
        self._loops -= loops

    def visit_If(self, node: ast.If) -> None:
        tested = [
            meant
            for test in ast.walk(node.test)
            if isinstance(test, ast.Compare)
            and any(isinstance(op, (ast.In, ast.NotIn)) for op in test.ops)
            for meant in map(self._meant, test.comparators)
            if meant is not None
        ]
        self._tested += tested
        self.generic_visit(node)
        del self._tested[len(self._tested) - len(tested) :]

    # ---- Statements

    def _bind(self, target: ast.AST, at: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._bind(part, at)
        else:
            self._add(
                target, "item" if isinstance(target, ast.Subscript) else "bind", at
            )

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node)
            if isinstance(node.value, (ast.Name, ast.Attribute)):
                of, to = self._meant(node.value), self._meant(target)
                if of is not None and to is not None:
                    self.same.append((of, to))
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
            holder, method = node.func.value, node.func.attr
            if method in _ADDING:
                self._add(holder, "item", node)
            if method in _SHRINKING:
                self._add(holder, "shrink", node)
            meant = self._meant(holder)
            if method in _LOOKING_UP and meant is not None:
                self._looked_up.add((self._function, meant))
        places: list[tuple[int | str, ast.expr]] = list(enumerate(node.args))
        places += [(keyword.arg or "", keyword.value) for keyword in node.keywords]
        for place, argument in places:
            what = self._meant(argument)
            if what is not None:
                self.passed.append((what, last_name(node.func), place))
        self.generic_visit(node)


def _bound_in(scope: ast.AST) -> set[str]:
    """The names that a function or class gives, without those of functions in it."""
    found: set[str] = set()
    elsewhere: set[str] = set()
    rest = list(ast.iter_child_nodes(scope))
    while rest:
        node = rest.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            elsewhere.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        if not isinstance(node, inner):
            rest += ast.iter_child_nodes(node)
    return found - elsewhere
