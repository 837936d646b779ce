"""Which line has something keep a thing that no object in Python shows.

A graph's hooks, a capsule, an exit function or a traced function hold things in C:
nothing that could be looked at gets longer. But the function that hands a thing over
has it in a variable, and once the line has run there is one reference more.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from oomph.holders.chain import Chain
from oomph.holders.frames import running, variables
from oomph.holders.lines import Line
from oomph.leaks.lines.allocated import allocated_at, storage_of

_AGREE = 2  # things that were kept by the same line
_ROUNDS_OF_KINDS = 12  # before tensors count, which graphs refer to as well
_ITEMS_MAX = 16  # of a tuple or list in a variable


@dataclass(eq=False)
class _Thing:
    """Something that a function has, or had, in a variable.

    Attributes:
        explained: By how much its references have changed since it was met.
        added: The lines that added some, each as often as it did.
    """

    ref: weakref.ref[Any]
    explained: int = 0
    added: list[Line] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Uses:
    """How often things of a suspect are referred to, as lines run that know them.

    It holds nothing of the program.

    Attributes:
        kinds: Classes of what holds it that can be referred to weakly, the last first.
        allocated_at: Where the memory of tensors is allocated that are kept.
    """

    kinds: tuple[type, ...]
    allocated_at: tuple[Line, ...]
    _things: dict[int, _Thing] = field(default_factory=dict)  # by identity
    _frames: dict[int, dict[int, int]] = field(default_factory=dict)  # their counts
    _rounds: int = 0

    @property
    def place(self) -> Hashable:
        """The same for nothing else."""
        return id(self), None

    def look(self, frame: FrameType, before: Line | None, result: object) -> None:
        """A function has run a line.

        What is bound to a variable for the first time is only counted: what holds it
        besides may be older.

        Args:
            frame: The function's.
            before: The line; None: it begins.
            result: What the function returns after it, if it ends.
        """
        last = self._frames.get(id(frame), {})
        known = variables(frame)
        bound = Counter(map(id, known.values()))
        values = {id(v): v for v in _with_items(known.values()) if self._is_meant(v)}
        known.clear()
        counts = self._frames[id(frame)] = {}
        while values:
            key, value = values.popitem()
            if value is result:
                continue  # which is referred to from here as well
            thing = self._met(value)
            count = _references(value) - bound[key] - thing.explained
            change = count - last.get(key, count)
            if before is not None and change != 0:
                more = [before] * change
                thing.added = thing.added + more if more else thing.added[:change]
                thing.explained += change
                count -= change
            counts[key] = count
            del value

    def leave(self, frame: FrameType) -> None:
        """A function has ended."""
        self._frames.pop(id(frame), None)

    def end_round(self) -> None:
        """Frames may be others' when it looks again."""
        self._frames.clear()
        self._rounds += 1

    def line(self) -> Line | None:
        """The line that keeps things which no function has in a variable any more."""
        bound = {id(v) for frame in running() for v in variables(frame).values()}
        there = {key: t for key, t in self._things.items() if t.ref() is not None}
        self._things = there
        kept = [t for key, t in there.items() if key not in bound and t.added]
        is_late = self._rounds >= _ROUNDS_OF_KINDS or not self.kinds
        for kind in (*self.kinds, *[torch.Tensor] * is_late):
            lines = Counter(t.added[-1] for t in kept if isinstance(t.ref(), kind))
            for line, count in lines.most_common(1):
                if count >= _AGREE:
                    return line
        return None

    def _is_meant(self, value: Any) -> bool:
        if type(value) in self.kinds:
            return True
        if not issubclass(type(value), torch.Tensor):
            return False
        known = self._things.get(id(value))
        is_known = known is not None and known.ref() is value
        return is_known or bool({*allocated_at(value)} & {*self.allocated_at})

    def _met(self, value: Any) -> _Thing:
        known = self._things.get(id(value))
        if known is None or known.ref() is not value:
            known = self._things[id(value)] = _Thing(weakref.ref(value))
        return known


def uses(chain: Chain, lines: tuple[Line, ...]) -> Uses:
    """Of what something in C holds.

    Args:
        chain: From a tensor outwards.
        lines: Where the memory of such tensors is allocated.
    """
    kinds = dict.fromkeys(type(thing) for thing in reversed(chain.things[1:]))
    return Uses(tuple(kind for kind in kinds if kind.__weakrefoffset__ > 0), lines)


def _with_items(values: Iterable[Any]) -> Iterator[Any]:
    """Values, and what is in the tuples and lists among them."""
    for value in values:
        yield value
        if type(value) in (tuple, list):
            yield from value[:_ITEMS_MAX]


def _references(value: Any) -> int:
    """To an object, and to a tensor's memory, in Python and C++."""
    count = sys.getrefcount(value)
    if not issubclass(type(value), torch.Tensor):
        return count
    storage = storage_of(value)
    shared = 0 if storage is None else torch._C._storage_Use_Count(storage._cdata)
    return count + int(value._use_count()) + int(shared)
