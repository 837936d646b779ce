"""The chain of references that holds an object, in words."""

from __future__ import annotations

import contextvars
import gc
import sys
import types
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from oomph.holders.frames import locals_of
from oomph.holders.lines import Line, line_of, line_of_code
from oomph.memory.sites import is_user

_CELL = types.CellType
_SKIPPED = (_CELL, contextvars.Context)
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
TABLES = ("_parameters", "_buffers", "_modules")


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
        article = "an" if self.holder[:1].lower() in "aeiou" else "a"
        return f"{article} {self.holder}"


@dataclass
class Chain:
    """From a tensor outwards to a name, or around a circle that nothing holds.

    Attributes:
        hops: The references, the tensor's own first.
        things: The objects on the way, from the tensor to the last holder.
        circle: Whether it goes round.
        closing: Of a circle: the reference that closes it.
        frame: The running function whose variable the last hop is.
        is_far: Whether no walk from a name has met it.
        is_open: Whether no object of Python's holds the last one: a call that goes on
            may, such as ``list(…)``, or something in C.
    """

    hops: list[Hop] = field(default_factory=list)
    things: list[Any] = field(default_factory=list, repr=False)
    circle: bool = False
    closing: Hop | None = None
    frame: types.FrameType | None = field(default=None, repr=False)
    is_far: bool = False
    is_open: bool = False

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
        if container and self.is_open:
            parts.append(Hop("object", "", container).text())
        times = ((part, len([*same])) for part, same in groupby(parts))
        text = ", in ".join(p if n == 1 else f"{p} ({n} times)" for p, n in times)
        if self.circle:
            return f"{text}, in a reference cycle that nothing else holds"
        if self.is_open:
            return f"{text}, which a call that goes on, or something in C, holds"
        return text

    def exceptions(self) -> list[BaseException]:
        """Those on the way."""
        return [thing for thing in self.things if isinstance(thing, BaseException)]

    def kinds(self) -> set[str]:
        """Of all hops."""
        return {hop.kind for hop in self.hops}


def hops_along(things: list[Any], modules: dict[int, str]) -> list[Hop]:
    """The hops along a path, in its order.

    Args:
        things: From what is held outwards.
        modules: The names of modules by the identity of their globals.
    """
    hops: list[Hop] = []
    for place in range(1, len(things)):
        holder, held = things[place], things[place - 1]
        owner = things[place + 1] if place + 1 < len(things) else None
        if is_namespace(owner, holder):
            continue  # named with its owner
        before = things[place - 2] if place > 1 else None
        if before is not None and is_namespace(holder, held):
            hops.append(_attribute(holder, held, before))
        elif isinstance(owner, types.FunctionType) and isinstance(held, _CELL):
            continue  # the tuple of its cells: named with the function
        elif isinstance(holder, types.FunctionType) and isinstance(before, _CELL):
            hops.append(_closure(holder, before))
        else:
            hops.append(hop_to(holder, held, modules))
    return [hop for hop in hops if hop.kind != "skip"]


def hop_to(holder: Any, held: Any, modules: dict[int, str]) -> Hop:
    """How one object holds another."""
    if isinstance(holder, dict):
        name = next((str(k) for k, v in holder.items() if v is held), "")
        module = modules.get(id(holder))
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
        known = locals_of(holder).items()
        name = next((name for name, value in known if value is held), "?")
        line = line_of(holder)
        return Hop("frame", name, holder.f_code.co_name, line)
    if isinstance(holder, types.TracebackType):
        return Hop("traceback", "", "traceback")
    if isinstance(holder, BaseException):
        return Hop("exception", "", type(holder).__name__)
    if isinstance(holder, types.MethodType):
        return Hop("object", "", f"bound method {holder.__name__}()")
    return _slot(holder, held)


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
    return namespace is thing or any(namespace.get(t) is thing for t in TABLES)


def _attribute(holder: Any, namespace: dict[Any, Any], held: Any) -> Hop:
    name = next((str(key) for key, v in namespace.items() if v is held), "?")
    if name in TABLES and isinstance(held, dict):
        return Hop("skip")
    if isinstance(holder, type):
        return Hop("class", name, holder.__qualname__)
    return _of_object(name, holder)


def name_of_cell(function: types.FunctionType, cell: object) -> str | None:
    """The variable of a function that a cell is; None: it has no such cell."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return next((name for name, each in cells if each is cell), None)


def _closure(function: types.FunctionType, held: Any) -> Hop:
    line = line_of_code(function.__code__)
    name = name_of_cell(function, held) or "default"
    return Hop("cell", name, function.__qualname__, line)


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
