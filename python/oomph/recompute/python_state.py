"""What Python can see of the state that a module's forward might change.

Its attributes and those of the modules in it, what they hold, its arguments, the random
numbers of Python and NumPy, and what its code names: globals, closures, defaults and
attributes of functions and classes, and the same of the functions and classes that it
calls, as far as they belong to no library. Each is marked by where it is found; marks
that differ show what was changed. An iterator that does not say how far it is counts as
changed. Not seen is what lies deeper than some levels, or is hidden in an object that
has no attributes. What belongs to PyTorch or to the log is not looked into.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import sys
import types
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_DEPTH = 8  # of containers and objects that are looked into
_LONG = 1000  # entries of a container that are looked at one by one
ENTRIES = 50_000  # that are looked at

Marks = dict[str, object]


def _is_of_library(value: object, name: str | None = None) -> bool:
    """Whether a function, class or module is Python's, PyTorch's or NumPy's."""
    name = name or getattr(value, "__module__", None) or "builtins"
    top = name.partition(".")[0]
    return top in ("torch", "numpy") or (
        top in sys.stdlib_module_names and top != "__main__"
    )


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """Those of an object, in its dict and in slots."""
    yield from list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _names(code: types.CodeType) -> Iterator[str]:
    """All names that code uses, and functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _functions_of(value: object) -> Iterator[types.FunctionType]:
    """The functions of a program behind an attribute of a class or a global."""
    if isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    accessors = (value.fget, value.fset) if isinstance(value, property) else (value,)
    for found in accessors:
        while found is not None:
            if isinstance(found, types.FunctionType) and not _is_of_library(found):
                yield found
            found = getattr(found, "__wrapped__", None)


_SEQUENCES: tuple[type[Any], ...] = (list, tuple, set, frozenset, deque)


class _Walk:
    """Looks at objects and what they hold: a path and a mark of each."""

    def __init__(self) -> None:
        self.marks: Marks = {}
        self._seen: set[int] = set()
        self._classes: set[type] = set()
        self._functions: deque[types.FunctionType] = deque()
        self._methods: dict[str, list[object]] = {}  # of classes that were met
        self._named: set[str] = set()  # by code that was met

    def look(self, path: str, value: object, depth: int = _DEPTH) -> None:
        """At a value; two marks of it are equal if nothing changed it meanwhile."""
        if len(self.marks) > ENTRIES:
            return
        if isinstance(value, torch.Tensor):
            version = None if value.is_inference() else value._version
            self.marks[path] = id(value), version
            return
        if isinstance(value, (bool, int, float, complex, str, bytes)):
            self.marks[path] = value
            return
        if isinstance(value, types.MethodType):  # made anew whenever it is asked for
            self.look(f"{path}.__self__", value.__self__, depth)
            value = value.__func__
        self.marks[path] = id(value), _content(value)
        if id(value) in self._seen:
            return
        if isinstance(value, type):
            self.look_at_class(value)
            return
        if isinstance(value, functools.partial):
            self.look(f"{path}.args", (value.args, value.keywords), depth)
            value = value.func
        self._functions.extend(_functions_of(value))
        if depth == 0 or not _is_open(value):
            return
        self._seen.add(id(value))
        if isinstance(value, dict):
            if dict.__len__(value) <= _LONG:
                for key, item in list(dict.items(value)):
                    name = repr(key)[:40] if isinstance(key, (str, int)) else id(key)
                    self.look(f"{path}[{name}]", item, depth - 1)
        elif isinstance(value, _SEQUENCES):
            items = _items(value)
            if len(items) <= _LONG:
                for i, item in enumerate(items):
                    self.look(f"{path}[{i}]", item, depth - 1)
        else:
            self.look_at_class(type(value))
            for name, item in _attributes(value):
                self.look(f"{path}.{name}", item, depth - 1)

    def look_at_class(self, kind: type) -> None:
        """At what a class and those above it hold; methods follow once named."""
        for base in kind.__mro__:
            if _is_of_library(base) or base in self._classes:
                continue
            self._classes.add(base)
            for name, value in list(vars(base).items()):
                if any(True for _ in _functions_of(value)):
                    self._methods.setdefault(name, []).append(value)
                    if name in self._named:
                        self._functions.extend(_functions_of(value))
                elif not name.startswith("__"):
                    self.look(f"{base.__name__}.{name}", value, 2)

    def follow(self) -> None:
        """Looks at what the code of all functions that were met names."""
        done: set[types.FunctionType] = set()
        while self._functions and len(self.marks) <= ENTRIES:
            function = self._functions.popleft()
            if function not in done:
                done.add(function)
                self._look_at_function(function)

    def _look_at_function(self, function: types.FunctionType) -> None:
        where = function.__qualname__
        for i, cell in enumerate(function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # it is empty
                name = function.__code__.co_freevars[i]
                self.look(f"{where}: {name}", cell.cell_contents)
        self.look(f"{where}: its defaults", function.__defaults__)
        self.look(f"{where}: its defaults by name", function.__kwdefaults__)
        self.look(f"{where}: its attributes", vars(function))
        names = set(_names(function.__code__))
        for name in names - self._named:
            self._named.add(name)
            for method in self._methods.get(name, ()):
                self._functions.extend(_functions_of(method))
        for name in names:
            if name in function.__globals__:
                value = function.__globals__[name]
            elif name in sys.modules:
                value = sys.modules[name]
            else:
                continue
            if not isinstance(value, types.ModuleType):
                self.look(f"the global {name}", value)
            elif not _is_of_library(value, value.__name__):
                for attribute in names & vars(value).keys():
                    self.look(f"{name}.{attribute}", vars(value)[attribute])


def _items(value: Any) -> list[Any]:
    """What a container holds, whatever its class makes of being asked."""
    kind = next(kind for kind in _SEQUENCES if isinstance(value, kind))
    return list(kind.__iter__(value))


def _content(value: object) -> object:
    """What shows that the content of a container or a generator has changed."""
    if isinstance(value, dict):
        return dict.__len__(value), hash(tuple(map(id, dict.values(value))))
    if isinstance(value, (set, frozenset)):
        return len(_items(value))
    if isinstance(value, _SEQUENCES):
        return hash(tuple(map(id, _items(value))))
    if isinstance(value, random.Random):
        return hash(value.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.ndarray):
            return zlib.crc32(repr(value.dtype).encode() + value.tobytes())
        if isinstance(value, numpy.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, numpy.random.RandomState):
            return repr(value.get_state())
    with contextlib.suppress(TypeError, ValueError, BufferError):  # it has no bytes
        return zlib.crc32(memoryview(value).cast("B"))  # type: ignore[arg-type]
    if isinstance(value, Iterator):
        is_count = type(value).__module__ == "itertools" and "count" in repr(value)
        return repr(value) if is_count else object()
    return None


def _is_open(value: object) -> bool:
    """Whether it is looked into: what programs make, not what libraries are."""
    if isinstance(value, (nn.Module, types.ModuleType)) or callable(value):
        return False
    return type(value).__module__.split(".")[0] not in ("torch", "logging", "threading")


_OWN = {"_modules", *(name for name in vars(nn.Module()) if "hooks" in name)}
_PUT_BACK = re.compile(r"its arguments|.*'s random numbers$|([^:\[]*\.)?_parameters\b")


def is_kept(path: str) -> bool:
    """Whether what lies there is found as it is by a call that runs again later.

    The rest is as it was the first time: arguments, random numbers and parameters.
    """
    return _PUT_BACK.match(path) is None


def marks(module: nn.Module, arguments: Any) -> Marks:
    """Marks of all that its forward might change, by where it is found."""
    walk = _Walk()
    walk.look("its arguments", arguments)
    for name, inner in module.named_modules():
        for attribute, value in vars(inner).items():
            if attribute in _OWN:
                continue
            depth = 1 if attribute in ("_parameters", "_buffers") else _DEPTH
            path = f"{name}.{attribute}".lstrip(".")
            if attribute == "_buffers":  # their contents are put back
                for key, buffer in value.items():
                    walk.marks[f"{path}[{key!r}]"] = id(buffer)
                continue
            walk.look(path, value, depth)
        walk.look_at_class(type(inner))
        walk.look(f"{name}.forward".lstrip("."), inner.forward)
    walk.follow()
    walk.marks["Python's random numbers"] = hash(random.getstate())
    if (numpy := sys.modules.get("numpy")) is not None:
        state = numpy.random.get_state()
        walk.marks["NumPy's random numbers"] = hash((state[1].tobytes(), state[2]))
    return walk.marks


def changed(before: Marks, now: Marks) -> list[str]:
    """The paths whose marks differ, or that are on one side alone."""
    nothing = object()
    paths = {**before, **now}
    return [p for p in paths if before.get(p, nothing) != now.get(p, nothing)]
