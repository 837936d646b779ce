"""What Python can see of the state that a module's forward might change.

Its attributes and those of the modules in it, what they hold, its arguments, the
globals and closures of its functions, and the random numbers of Python and NumPy. Each
is marked by where it is found; marks that differ tell what was changed. Not seen is
what lies deeper than some levels; of a container of more than a thousand entries their
number alone is seen. What belongs to PyTorch or to the log is not looked into.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_DEPTH = 4  # of containers and objects that are looked into
_LONG = 1000  # entries of a container that are looked at one by one
ENTRIES = 50_000  # that are looked at

Marks = dict[str, object]


class _Walk:
    """Looks at objects and what they hold: a path and a mark of each."""

    def __init__(self) -> None:
        self.marks: Marks = {}
        self._seen: set[int] = set()

    def look(self, path: str, value: object, depth: int = _DEPTH) -> None:
        """At a value; two marks of it are equal if nothing changed it meanwhile."""
        if len(self.marks) > ENTRIES:
            return
        if isinstance(value, torch.Tensor):
            self.marks[path] = id(value), value._version
            return
        if isinstance(value, (bool, int, float, complex, str, bytes)):
            self.marks[path] = value
            return
        self.marks[path] = repr(value) if _counts(value) else id(value)
        if depth == 0 or id(value) in self._seen or not _is_open(value):
            return
        self._seen.add(id(value))
        if isinstance(value, Mapping):
            self.marks[path] = id(value), len(value)
            if len(value) <= _LONG:
                for key, item in list(value.items()):
                    self.look(f"{path}[{key!r:.40}]", item, depth - 1)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            self.marks[path] = id(value), len(value)
            if len(value) <= _LONG:
                for i, item in enumerate(list(value)):
                    self.look(f"{path}[{i}]", item, depth - 1)
        else:
            for name, item in list(getattr(value, "__dict__", {}).items()):
                self.look(f"{path}.{name}", item, depth - 1)


def _counts(value: object) -> bool:
    """Whether it is an iterator whose text tells how far it is."""
    return type(value).__module__ == "itertools" and type(value).__name__ == "count"


def _is_open(value: object) -> bool:
    """Whether it is looked into: what programs make, not what libraries are."""
    if isinstance(value, (nn.Module, types.ModuleType, type)) or callable(value):
        return isinstance(value, types.MethodType)
    return type(value).__module__.split(".")[0] not in ("torch", "logging", "threading")


_OWN = ("_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


def marks(module: nn.Module, arguments: Any) -> Marks:
    """Marks of all that its forward might change, by where it is found."""
    walk = _Walk()
    walk.look("its arguments", arguments)
    functions: set[types.FunctionType] = set()
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
        if type(inner).__module__.split(".")[0] == "torch":
            continue
        for attribute, value in list(vars(type(inner)).items()):
            if isinstance(value, types.FunctionType):
                functions.add(value)
            elif not attribute.startswith("__"):
                walk.look(f"{type(inner).__name__}.{attribute}", value, 2)
    seen: set[int] = set()
    for function in functions:
        for i, cell in enumerate(function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # it is empty
                name = function.__code__.co_freevars[i]
                walk.look(f"{function.__qualname__}: {name}", cell.cell_contents)
        if id(function.__globals__) in seen:
            continue
        seen.add(id(function.__globals__))
        for name, value in list(function.__globals__.items()):
            if not name.startswith("__"):
                walk.look(f"the global {name}", value)
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
