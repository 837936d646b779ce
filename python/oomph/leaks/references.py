"""What holds an object: the chain of Python references from it to a name.

A name that lives is a local of a function that is running, a module's global, a class's
attribute. From those of the program itself nearly all that it holds is met within some
milliseconds. What is not is searched outwards, by all objects that refer to it, which
takes so long for each link.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from traceback import walk_stack
from typing import Any

from oomph import _C
from oomph.leaks import source
from oomph.leaks.source import Line
from oomph.memory.sites import is_user

_REACHED_MAX = 1 << 20  # objects that are met from the program's names
_DEPTH_MAX = 16
_WIDTH_MAX = 3000  # objects of one distance
_COPY_REFERENCES = 3  # to a frame's copy: the frame's, a variable's, an argument's
_OURS = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class Hop:
    """One reference: how the holder knows what it holds.

    Attributes:
        kind: ``item`` of a container, ``attr`` of an object, ``local`` of a running
            function, ``frame`` (a local of one that ended), ``global`` of a module,
            ``class`` attribute, ``context`` variable, ``cell`` (a variable of a
            function that uses it),
            ``traceback``, ``exception``, or ``object`` for anything else.
        name: Of the variable, attribute or key; empty if it has none.
        holder: The type of the holder, or the name of the function or module.
        line: Where the holder is, if it is code.
        bounded: A container that limits itself (``deque(maxlen=…)``).
        foreign: The holder is of a class that is not the user's.
    """

    kind: str
    name: str = ""
    holder: str = ""
    line: Line | None = None
    bounded: bool = False
    foreign: bool = False

    def text(self, container: str = "") -> str:
        """Such as "`losses`, a list, local of train() (train.py:42)".

        Args:
            container: Its type, if what is named is a container.
        """
        named = f"`{self.name}`" + (f", a {container}" if container else "")
        at = f" {self.line}" if self.line else ""
        if self.kind == "local":
            return f"{named}, a variable{at}" if not container else f"{named}{at}"
        if self.kind == "frame":
            return f"{named}, a variable of the call that ended{at}"
        if self.kind == "cell":
            return f"{named}, which the function {self.holder}() uses{at}"
        if self.kind == "global":
            return f"{named}, global of {self.holder}{at}"
        if self.kind == "context":
            return f"{named}, a context variable"
        if self.kind in ("attr", "class"):
            of = "a" if self.kind == "attr" else "the class"
            return f"`.{self.name}`{named[len(self.name) + 2 :]} of {of} {self.holder}"
        return f"a {self.holder}"


@dataclass
class Chain:
    """From a tensor outwards to a name, or around a circle that nothing holds.

    Attributes:
        hops: The references, the tensor's own first.
        things: The objects on the way, from the tensor to the last holder.
        circle: Whether it goes round.
        closing: Of a circle: the reference that closes it.
        frame: The running function whose variable the last hop is.
    """

    hops: list[Hop] = field(default_factory=list)
    things: list[Any] = field(default_factory=list, repr=False)
    circle: bool = False
    closing: Hop | None = None
    frame: types.FrameType | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """All of it in a sentence."""
        parts: list[str] = []
        container = ""
        for hop in self.hops:
            if hop.kind == "item" and not container:
                container = hop.holder
                continue
            parts.append(hop.text(container))
            container = hop.holder if hop.kind == "item" else ""
        told = ", in ".join(parts)
        return (
            f"{told}, in a reference cycle that nothing else holds"
            if self.circle
            else told
        )

    def kinds(self) -> set[str]:
        """Of all hops."""
        return {hop.kind for hop in self.hops}


_CELL = types.CellType
_SKIPPED = (_CELL, contextvars.Context)
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)


def _namespaces(wanted: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The names of modules whose package is wanted, and their globals."""
    for name, module in list(sys.modules.items()):
        if wanted(name.partition(".")[0]) and isinstance(module, types.ModuleType):
            yield name, vars(module)


@functools.cache
def _is_of_program(package: str) -> bool:
    """Whether it is not Python's, nor an installed package."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return is_user(file) if isinstance(file, str) else package == "__main__"


def _frames() -> list[types.FrameType]:
    """All that run, of every thread, innermost first.

    Without our own, and without PyTorch's that called these: they are about to end.
    """
    return [
        frame
        for top in sys._current_frames().values()
        for frame in itertools.dropwhile(_is_ending, (f for f, _ in walk_stack(top)))
    ]


def _is_ending(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith((_OURS, "torch."))


def variables(frame: types.FrameType) -> dict[str, Any]:
    """A function's variables.

    Reading them makes a copy, which the frame keeps: it is emptied, or it would hold
    tensors for longer than the function does; unless it is what the function itself
    got from ``locals()``.
    """
    copy = frame.f_locals
    found = dict(copy)
    if sys.version_info < (3, 13) and sys.getrefcount(copy) <= _COPY_REFERENCES:
        copy.clear()
    return found


def _locals_of(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a function; none of a module's or a class's body."""
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED == 0:
        return {}
    return variables(frame)


_TABLES = ("_parameters", "_buffers", "_modules")


def _parents(modules: Sequence[Any]) -> dict[int, tuple[Any, Any]]:
    """The table and the module that hold a module or a tensor, by its identity."""
    found: dict[int, tuple[Any, Any]] = {}
    for module in modules:
        for name in _TABLES:
            table = module.__dict__.get(name)
            if table:
                found.update((id(held), (table, module)) for held in table.values())
    return found


class Search:
    """Looks for what holds objects; the world must stand still meanwhile.

    Args:
        modules: All there are: each step through them is a look at all objects less.
    """

    def __init__(self, modules: Sequence[Any] = ()) -> None:
        self._modules = modules
        self._parents: dict[int, tuple[Any, Any]] = {}
        self._globals: dict[int, str] = {}  # names of modules
        self._locals: dict[int, tuple[Hop, types.FrameType]] = {}
        self._roots: list[Any] = []
        frames = _frames()
        for frame in frames:
            line = source.line_of(frame)
            for name, value in _locals_of(frame).items():
                hop = Hop("local", name, frame.f_code.co_name, line)
                self._locals.setdefault(id(value), (hop, frame))
                self._roots.append(value)
        for name, namespace in _namespaces(_is_of_program):
            self._add_module(name, namespace)
        for frame in frames:
            if is_user(frame.f_code.co_filename):
                name = str(frame.f_globals.get("__name__", "?"))
                self._add_module(name, frame.f_globals)

    def _add_module(self, name: str, namespace: dict[str, Any]) -> None:
        """Of the program; one may have two names: the first."""
        self._roots.append(namespace)
        self._globals.setdefault(id(namespace), name)

    def chains(
        self, targets: Sequence[object], avoid: Sequence[object] = ()
    ) -> Iterator[Chain]:
        """The shortest chain that holds each; without hops if none was found.

        Args:
            targets: What is held.
            avoid: Objects that do not count as holders.
        """
        roots = tuple(self._roots)
        paths = _C.paths(tuple(targets), roots, tuple(avoid), _REACHED_MAX)
        ours = {id(targets), *map(id, avoid)}
        for target, path in zip(targets, paths, strict=True):
            if path is None or any(map(_is_ours, path)):
                yield self._outwards(target, ours)
            else:
                yield self._chain_of(_cut(path))

    def _outwards(self, target: object, avoid: set[int]) -> Chain:
        """The shortest chain from one object, by all that refer to it."""
        self._learn_all()
        inner: dict[int, int] = {}  # what the object with this identity holds
        known: dict[int, Any] = {id(target): target}
        level: list[Any] = [target]
        closing: tuple[Any, Any] | None = None
        for _ in range(_DEPTH_MAX):
            root = self._root(level, inner, known)
            if root is not None:
                return root
            referrers = gc.get_referrers(*level)
            held = {id(thing) for thing in level}
            outer: list[Any] = []
            skip = {id(level), id(referrers), id(known), id(inner), id(held), id(outer)}
            skip |= {id(self._roots), *avoid}
            for referrer in referrers:
                if id(referrer) in skip or _is_ours(referrer):
                    continue
                child = _held_by(referrer, held)
                if child is None:
                    continue
                if id(referrer) in known:
                    if closing is None and _leads(inner, child, id(referrer)):
                        closing = (referrer, known[child])
                    continue
                known[id(referrer)] = referrer
                inner[id(referrer)] = child
                outer.append(referrer)
            referrers.clear()  # or it would be found in its turn
            outer += self._modules_of(level, inner, known)
            level = outer
            if not level or len(level) > _WIDTH_MAX:
                break
        if level or closing is None:
            return Chain()
        return self._circle(closing, inner, known)

    def _learn_all(self) -> None:
        """What is needed only outwards: who holds modules, and what all are called."""
        if self._parents:
            return
        self._parents = _parents(self._modules)
        for name, namespace in _namespaces(bool):
            self._globals.setdefault(id(namespace), name)

    def _modules_of(
        self, level: list[Any], inner: dict[int, int], known: dict[int, Any]
    ) -> list[Any]:
        """The modules that hold some of these in their tables."""
        found = []
        for thing in level:
            table, module = self._parents.get(id(thing), (None, None))
            if module is None or id(module) in known:
                continue
            known |= {id(table): table, id(module): module}
            inner |= {id(table): id(thing), id(module): id(table)}
            found.append(module)
        return found

    def _root(
        self, level: list[Any], inner: dict[int, int], known: dict[int, Any]
    ) -> Chain | None:
        """The best name among the objects of one distance, if any has one."""
        best: tuple[int, Any] | None = None
        for thing in level:
            rank = 9
            if id(thing) in self._globals and id(thing) in inner:
                rank = 1
            elif id(thing) in self._locals:
                rank = 0
            elif isinstance(thing, (type, contextvars.Context)) and id(thing) in inner:
                rank = 2
            if rank < 9 and (best is None or rank < best[0]):
                best = rank, thing
        if best is None:
            return None
        return self._chain_of(_path(id(best[1]), inner, known))

    def _chain_of(self, things: list[Any]) -> Chain:
        """The chain along a path from a target to what has a name, or is one."""
        hops, last = self._hops(things), things[-1]
        if id(last) not in self._globals and id(last) in self._locals:
            hop, frame = self._locals[id(last)]
            return Chain([*hops, hop], things, frame=frame)
        if isinstance(last, contextvars.Context):
            variable = variable_of(last, things)
            hops.append(Hop("context", "?" if variable is None else variable.name))
        return Chain(hops, things)

    def _hops(self, things: list[Any]) -> list[Hop]:
        """The hops along a path, in its order."""
        hops: list[Hop] = []
        for place in range(1, len(things)):
            holder, held = things[place], things[place - 1]
            owner = things[place + 1] if place + 1 < len(things) else None
            if is_namespace(owner, holder):
                continue  # told with its owner
            before = things[place - 2] if place > 1 else None
            if before is not None and is_namespace(holder, held):
                hops.append(_attribute(holder, held, before))
            elif isinstance(owner, types.FunctionType) and isinstance(held, _CELL):
                continue  # the tuple of its cells: told with the function
            elif isinstance(holder, types.FunctionType) and isinstance(before, _CELL):
                hops.append(_closure(holder, before))
            else:
                hops.append(self._hop(holder, held))
        return [hop for hop in hops if hop.kind != "skip"]

    def _hop(self, holder: Any, held: Any) -> Hop:
        """How one object holds another."""
        if isinstance(holder, dict):
            name = next((str(k) for k, v in holder.items() if v is held), "")
            module = self._globals.get(id(holder))
            if module is not None:
                return Hop("global", name, module)
            return Hop("item", name, "dict")
        if isinstance(holder, _CONTAINERS):
            bounded = isinstance(holder, deque) and holder.maxlen is not None
            return Hop("item", "", type(holder).__name__, bounded=bounded)
        if isinstance(holder, _SKIPPED) or type(holder).__name__.startswith("hamt"):
            return Hop("skip")  # what a context has its variables in is called hamt
        if isinstance(holder, types.FunctionType):
            return _closure(holder, held)
        if isinstance(holder, types.FrameType):
            known = _locals_of(holder).items()
            name = next((name for name, value in known if value is held), "?")
            line = source.line_of(holder)
            return Hop("frame", name, holder.f_code.co_name, line)
        if isinstance(holder, types.TracebackType):
            return Hop("traceback", "", "traceback")
        if isinstance(holder, BaseException):
            return Hop("exception", "", type(holder).__name__)
        if isinstance(holder, types.MethodType):
            return Hop("object", "", f"bound method {holder.__name__}()")
        return _slot(holder, held)

    def _circle(
        self, closing: tuple[Any, Any], inner: dict[int, int], known: dict[int, Any]
    ) -> Chain:
        """What goes round: ``closing`` holds what is further out than itself."""
        holder, held = closing
        things = _path(id(held), inner, known)
        hops = self._hops(things)
        if is_namespace(holder, held) or isinstance(holder, dict):
            last = Hop("skip")
        else:
            last = self._hop(holder, held)
        start = next((i for i, thing in enumerate(things) if thing is holder), 0)
        around = self._hops(things[start:])
        filled = [b for a, b in pairwise(around) if a.kind == "item"]
        outwards = (*filled, last, *reversed(around), *reversed(hops))
        named = [hop for hop in outwards if hop.kind in ("attr", "cell")]
        return Chain(hops, things, True, named[0] if named else None)


def _cut(path: list[Any]) -> list[Any]:
    """A path ends at the first class, or context, as these have names themselves."""
    for place, thing in enumerate(path):
        if place > 0 and isinstance(thing, (type, contextvars.Context)):
            return path[: place + 1]
    return path


def _path(outermost: int, inner: dict[int, int], known: dict[int, Any]) -> list[Any]:
    """The objects from the target to one that holds it."""
    path = [outermost]
    while path[-1] in inner:
        path.append(inner[path[-1]])
    return [known[identity] for identity in reversed(path)]


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.startswith(_OURS)


def _held_by(holder: Any, held: set[int]) -> int | None:
    """Which of these objects it holds."""
    for referent in gc.get_referents(holder):
        if id(referent) in held:
            return id(referent)
    return None


def _leads(inner: dict[int, int], outermost: int, wanted: int) -> bool:
    """Whether the path inwards from an object passes another."""
    at: int | None = outermost
    while at is not None:
        if at == wanted:
            return True
        at = inner.get(at)
    return False


def variable_of(
    context: contextvars.Context, things: list[Any]
) -> contextvars.ContextVar[Any] | None:
    """The variable of a context whose value is one of these things."""
    held = set(map(id, things))
    return next((var for var, value in context.items() if id(value) in held), None)


def is_namespace(owner: object, thing: object) -> bool:
    """Whether ``thing`` is the ``__dict__`` of ``owner``, or a module's own table."""
    if not isinstance(thing, dict) or owner is None:
        return False
    if isinstance(owner, type):
        return any(inner is thing for inner in gc.get_referents(vars(owner)))
    try:
        namespace = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return False
    return namespace is thing or any(namespace.get(t) is thing for t in _TABLES)


def _attribute(holder: Any, namespace: dict[Any, Any], held: Any) -> Hop:
    name = next((str(key) for key, v in namespace.items() if v is held), "?")
    if name in _TABLES and isinstance(held, dict):
        return Hop("skip")
    if isinstance(holder, type):
        return Hop("class", name, holder.__qualname__)
    return _of_object(name, holder)


def _closure(function: types.FunctionType, held: Any) -> Hop:
    line = source.line_of_code(function.__code__)
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        if cell is held:
            return Hop("cell", name, function.__qualname__, line)
    return Hop("cell", "default", function.__qualname__, line)


def _slot(holder: Any, held: Any) -> Hop:
    """An object that holds without a dict that could be seen on the way."""
    if isinstance(holder, type):
        name = next((k for k, v in vars(holder).items() if v is held), "?")
        return Hop("class", name, holder.__qualname__)
    try:
        namespace = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return Hop("object", "", type(holder).__name__)
    name = next((str(key) for key, v in namespace.items() if v is held), "")
    return _of_object(name, holder)


def _of_object(name: str, holder: Any) -> Hop:
    kind = type(holder)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    foreign = kind.__module__ == "builtins" or (
        isinstance(file, str) and not is_user(file)
    )
    return Hop("attr" if name else "object", name, kind.__name__, foreign=foreign)
