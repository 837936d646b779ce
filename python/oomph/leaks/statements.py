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
_JOINING = frozenset(("cat", "concat", "concatenate", "hstack", "vstack", "dstack"))
_KEEPING = frozenset(("detach", "clone", "contiguous", "to", "float", "half"))
_LENGTHS = frozenset(("len", "numel", "size", "shape"))
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
    guarded: bool = False  # only for a key that is not there, or up to a number
    joins: bool = False  # what was there is kept: x = cat([x, y])
    begins: bool = False  # only if nothing was there: if x is None: x = y
    last_line: int = 0  # of the statement

    @property
    def is_attribute(self) -> bool:
        """Whether it is about an object's attribute."""
        return self.to[0] == ATTRIBUTE

    @property
    def function(self) -> str:
        """The function whose end is that of the variable; empty: none's is."""
        return "" if self.is_attribute else self.to[1].rpartition("/")[2]


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
        self._missing: list[Variable] = []  # that `if x is None` asks
        self._ending = 0  # how many `if` around it hold for some steps only
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

    def _add(
        self, target: ast.AST, kind: str, at: ast.AST, value: ast.AST | None = None
    ) -> None:
        meant = self._meant(target)
        if meant is not None:
            line = Line(self.file, getattr(at, "lineno", 0), self._function)
            owners = [scope.name for scope in self._scopes if scope.is_class]
            owner = owners[-1] if owners else ""
            self.stores.append(
                Store(
                    meant,
                    kind,
                    line,
                    owner,
                    in_loop=self._loops > 0,
                    guarded=meant in self._tested or self._ending > 0,
                    joins=value is not None and _joins(value, target),
                    begins=meant in self._missing and not _is_none(value),
                    last_line=getattr(at, "end_lineno", None) or line.line,
                )
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
        tested, missing = len(self._tested), len(self._missing)
        for test in ast.walk(node.test):
            if isinstance(test, ast.Compare):
                if any(isinstance(op, (ast.In, ast.NotIn)) for op in test.ops):
                    self._tested += self._meant_by(*test.comparators)
                if any(map(_is_none, test.comparators)):
                    self._missing += self._meant_by(test.left)
        self.visit(node.test)
        ends = _ends(node.test)
        self._ending += ends
        for statement in node.body:
            self.visit(statement)
        self._ending -= ends
        for statement in node.orelse:
            self.visit(statement)
        del self._tested[tested:], self._missing[missing:]

    def _meant_by(self, *nodes: ast.AST) -> list[Variable]:
        return [meant for meant in map(self._meant, nodes) if meant is not None]

    # ---- Statements

    def _bind(self, target: ast.AST, at: ast.AST, value: ast.AST | None = None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._bind(part, at)
        else:
            kind = "item" if isinstance(target, ast.Subscript) else "bind"
            self._add(target, kind, at, value)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node, node.value)
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


def _ends(test: ast.AST) -> bool:
    """Whether a condition holds for some steps only: i < 8, len(x) < n."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(operator, (ast.Lt, ast.LtE)) and _grows_to(left, right):
                    return True
                if isinstance(operator, (ast.Gt, ast.GtE)) and _grows_to(right, left):
                    return True
    return False


def _grows_to(small: ast.AST, large: ast.AST) -> bool:
    if any(name in _LENGTHS for name in map(last_name, _called(small))):
        return True
    is_number = isinstance(large, ast.Constant) and type(large.value) is int
    return is_number and isinstance(small, (ast.Name, ast.Attribute))


def _called(node: ast.AST) -> list[ast.AST]:
    """The functions and attributes that an expression uses."""
    return [
        part.func if isinstance(part, ast.Call) else part
        for part in ast.walk(node)
        if isinstance(part, (ast.Call, ast.Attribute))
    ]


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _joins(value: ast.AST, target: ast.AST) -> bool:
    """Whether a value is the target's old one, whole, joined with something."""
    if isinstance(value, ast.IfExp):
        return _joins(value.body, target) or _joins(value.orelse, target)
    if not isinstance(value, ast.Call):
        return False
    if last_name(value.func) not in _JOINING:
        method = value.func
        return (
            isinstance(method, ast.Attribute)
            and method.attr in _KEEPING
            and _joins(method.value, target)
        )
    parts = [*value.args, *(keyword.value for keyword in value.keywords)]
    for part in parts:
        if isinstance(part, (ast.List, ast.Tuple)):
            parts += part.elts
    wanted = ast.unparse(target)
    return any(ast.unparse(part) == wanted for part in parts)


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
