"""What holds an object: the chain of Python references from it to a name.

A name that lives is a local of a function that is running, a module's global, a class's
attribute. From those of the program itself nearly all that it holds is met within some
milliseconds; what is not, from those of libraries, within some dozens. What is not met
then, such as garbage, is searched outwards, by all objects that refer to it: a hundred
milliseconds for each link.
"""

from __future__ import annotations

import contextvars
import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from oomph import _C
from oomph.holders.chain import Chain, Hop, hops_along, variable_of
from oomph.holders.frames import locals_of, passing, running
from oomph.holders.lines import line_of
from oomph.holders.modules import is_of_program, namespaces
from oomph.holders.outwards import Outwards, is_ours
from oomph.memory.sites import is_user

_REACHED_MAX = 1 << 20  # objects that are met from the program's names
_KEYS_MAX = 4  # tables whose key is a tensor, one in another


_holding: set[str] = set()
"""Modules of libraries that were found to hold what the program has made."""


_hidden: weakref.WeakSet[Any] = weakref.WeakSet()


def hide(thing: object) -> None:
    """From now on nothing is seen through it: it is ours, and a program may have it."""
    _hidden.add(thing)


class Search:
    """Looks for what holds objects; the world must stand still meanwhile.

    Args:
        since: A mark of `_C`: what came later are the variables of who looks.
    """

    def __init__(self, since: object = None) -> None:
        self._since = since
        self._globals: dict[int, str] = {}  # names of modules
        self._locals: dict[int, tuple[Hop, types.FrameType]] = {}
        self._roots: list[Any] = []
        self._of_libraries: list[Any] = []  # their functions' variables, which pass on
        frames = running()
        for frame in frames:
            line = line_of(frame)
            is_users = is_user(frame.f_code.co_filename)
            roots = self._roots if is_users else self._of_libraries
            for name, value in locals_of(frame).items():
                hop = Hop("local", name, frame.f_code.co_name, line)
                if is_users:  # the outermost function that has it passes it on
                    self._locals[id(value)] = hop, frame
                else:
                    self._locals.setdefault(id(value), (hop, frame))
                roots.append(value)
        for name, namespace in namespaces(is_of_program):
            self._add_module(name, namespace)
        for name in _holding & sys.modules.keys():
            self._add_module(name, vars(sys.modules[name]))
        for frame in frames:
            if is_user(frame.f_code.co_filename):
                name = str(frame.f_globals.get("__name__", "?"))
                self._add_module(name, frame.f_globals)

    def _add_module(self, name: str, namespace: dict[str, Any]) -> None:
        """Of the program; one may have two names: the first."""
        self._roots.append(namespace)
        self._globals.setdefault(id(namespace), name)

    def chains(
        self, targets: Sequence[object], avoid: Sequence[object] = (), far: bool = True
    ) -> Iterator[Chain]:
        """The shortest chain that holds each; without hops if none was found.

        Args:
            targets: What is held.
            avoid: Objects that do not count as holders.
            far: Whether what no name leads to is searched outwards.
        """
        ours = {id(targets), *map(id, avoid)}
        paths = self._paths(targets, avoid)
        unmet = [t for t, path in zip(targets, paths, strict=True) if path is None]
        passed = passing() if unmet else set()
        unmet = [target for target in unmet if id(target) not in passed]
        further = iter(self._library_paths(unmet, avoid))
        paths = [
            next(further) if path is None and id(target) not in passed else path
            for target, path in zip(targets, paths, strict=True)
        ]
        ours |= {id(unmet), id(paths)}
        for target, path in zip(targets, self._without_keys(paths, avoid), strict=True):
            if path is not None:
                yield self._chain_of(path)
            elif far and id(target) not in passed:
                yield replace(self._outwards(target, ours), is_far=True)
            else:
                yield Chain()

    def reaches(self, targets: Sequence[object], avoid: Sequence[object]) -> list[bool]:
        """Whether some name leads to each.

        Args:
            targets: What may be held.
            avoid: Objects that do not count as holders.
        """
        paths = self._paths(targets, avoid)
        unmet = [t for t, path in zip(targets, paths, strict=True) if path is None]
        further = iter(self._library_paths(unmet, avoid))
        return [path is not None or next(further) is not None for path in paths]

    def _paths(
        self, targets: Sequence[object], avoid: Sequence[object]
    ) -> list[list[Any] | None]:
        """The shortest paths from the program's names; None: there is none.

        Variables of libraries' functions count where no name of the user's leads to it.
        """
        avoid = [*avoid, self._roots, self._of_libraries]
        paths = list(map(_usable, _paths(targets, avoid, self._roots)))
        unmet = [t for t, path in zip(targets, paths, strict=True) if path is None]
        if not unmet or not self._of_libraries:
            return paths
        avoid.append(unmet)
        further = iter(map(_usable, _paths(unmet, avoid, self._of_libraries)))
        return [next(further) if path is None else path for path in paths]

    def _library_paths(
        self, targets: Sequence[object], avoid: Sequence[object]
    ) -> list[list[Any] | None]:
        """The same from the names of all modules but ours; these are remembered."""
        if not targets:
            return []
        roots = []
        for name, namespace in namespaces(lambda package: package != "oomph"):
            self._globals.setdefault(id(namespace), name)
            roots.append(namespace)
        paths = _paths(targets, avoid, roots)
        _holding.update(self._globals.get(id(path[-1]), "") for path in paths if path)
        return list(map(_usable, paths))

    def _without_keys(
        self, paths: list[list[Any] | None], avoid: Sequence[object]
    ) -> list[list[Any] | None]:
        """What holds the tensor that is the key of an entry holds the entry as well.

        Such are the states of an optimizer: they stay as long as the parameters do.
        """
        found, tables = list(paths), list(avoid)
        for _ in range(_KEYS_MAX):
            keyed = {
                number: entry
                for number, path in enumerate(found)
                if path is not None and (entry := _entry(path)) is not None
            }
            if not keyed:
                break
            tables += [entry.table for entry in keyed.values()]
            again = self._paths([entry.key for entry in keyed.values()], tables)
            for (number, entry), to_key in zip(keyed.items(), again, strict=True):
                if to_key is not None:
                    found[number] = [*entry.inner, *to_key]
            if not any(again):
                break
        return found

    def _outwards(self, target: object, avoid: set[int]) -> Chain:
        """The shortest chain from one object, by all that refer to it."""
        newer = None if self._since is None else _C.newer(self._since)
        ours = id(self._roots), id(self._of_libraries), id(newer)
        avoid = {*ours, *map(id, newer or ()), *avoid}
        search = Outwards(target, avoid, self._rank)
        things = search.root()
        if things is None:
            return search.without_root(self._globals, newer is not None)
        return self._chain_of(things)

    def _rank(self, thing: object, holds: bool) -> int | None:
        """How good a name it has: a local's is best; None: it has none."""
        if id(thing) in self._locals:
            return 0
        if holds and id(thing) in self._globals:
            return 1
        return 2 if holds and _has_name(thing) else None

    def _chain_of(self, things: list[Any]) -> Chain:
        """The chain along a path from a target to what has a name, or is one."""
        hops, last = hops_along(things, self._globals), things[-1]
        if id(last) not in self._globals and id(last) in self._locals:
            hop, frame = self._locals[id(last)]
            return Chain([*hops, hop], things, frame=frame)
        if isinstance(last, contextvars.Context):
            variable = variable_of(last, things)
            hops.append(Hop("context", "?" if variable is None else variable.name))
        return Chain(hops, things)


def are_in(
    holder: object, targets: Sequence[object], avoid: Sequence[object]
) -> list[bool]:
    """Whether an object holds each, be it by others.

    Args:
        holder: The object.
        targets: What may be held.
        avoid: Objects that do not count as holders, but for this one.
    """
    others = [other for other in avoid if other is not holder]
    return [path is not None for path in _paths(targets, others, [holder])]


def _paths(
    targets: Sequence[object], avoid: Sequence[object], roots: Sequence[object]
) -> list[list[Any] | None]:
    closed = (*avoid, *_hidden)
    return _C.paths(tuple(targets), tuple(roots), closed, _REACHED_MAX)


class _Entry(NamedTuple):
    """Of a dict whose keys are tensors, on the way outwards from what it holds."""

    inner: list[Any]  # what is held, and what is between it and the dict
    table: dict[Any, Any]
    key: Any


def _entry(path: list[Any]) -> _Entry | None:
    """The first entry on a path whose key is a tensor."""
    import torch

    for place, (held, table) in enumerate(pairwise(path)):
        if not isinstance(table, dict):
            continue
        entries = dict.items(table)
        keys = (key for key, value in entries if key is held or value is held)
        key = next(keys, None)
        if isinstance(key, torch.Tensor):
            return _Entry(path[:place], table, key)
    return None


def _has_name(thing: object) -> bool:
    """Whether it is known by itself: a context, or a class that no call has made."""
    if isinstance(thing, type):
        return "<locals>" not in thing.__qualname__
    return isinstance(thing, contextvars.Context)


def _usable(path: list[Any] | None) -> list[Any] | None:
    """A path of which nothing is ours.

    It ends at the first class, or context, as these have names themselves.
    """
    if path is None or any(map(is_ours, path)):
        return None
    for place, thing in enumerate(path):
        if place > 0 and _has_name(thing):
            return path[: place + 1]
    return path
