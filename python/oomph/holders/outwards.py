"""A search from one object outwards, by all that refer to it."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from oomph.holders.chain import Chain, Hop, hop_to, hops_along, is_namespace

_DEPTH_MAX = 32
_WIDTH_MAX = 3000  # objects of one distance
_OURS = ("oomph.leaks.", "oomph.diagnosis.", "oomph.holders.")
_NO_ROOT = 9  # a rank


def is_ours(thing: object) -> bool:
    """Whether it is of a class that only looks."""
    return type(thing).__module__.startswith(_OURS)


class Outwards:
    """Looks for the nearest object that has a name.

    Args:
        target: Whose holders are searched.
        avoid: The identities of objects that do not count as holders.
        rank: How good a name an object has that holds something, or is it; less is
            better, None: it has none.
    """

    def __init__(
        self,
        target: object,
        avoid: set[int],
        rank: Callable[[object, bool], int | None],
    ) -> None:
        self._target, self._avoid, self._rank = target, avoid, rank
        self._known: dict[int, Any] = {id(target): target}
        self._inner: dict[int, int] = {}  # what the object with this identity holds
        self._closing: tuple[Any, Any] | None = None  # what goes round, what it holds
        self._end: Any = None  # the first that nothing refers to, and that may keep

    def root(self) -> list[Any] | None:
        """The objects from the target to the nearest with a name; None: none has."""
        level: list[Any] = [self._target]
        for _ in range(_DEPTH_MAX):
            root = self._best(level)
            if root is not None:
                return self._path(root)
            level = self._further(level)
            if not level:
                return None
            if len(level) > _WIDTH_MAX:
                break
        self._end = None  # who knows what there is further out
        return None

    def _best(self, level: list[Any]) -> Any:
        """The one with the best name, if any has one."""
        best, found = _NO_ROOT, None
        for thing in level:
            rank = self._rank(thing, id(thing) in self._inner)
            if rank is not None and rank < best:
                best, found = rank, thing
        return found

    def _further(self, level: list[Any]) -> list[Any]:
        """What refers to some objects and was not met before."""
        referrers = gc.get_referrers(*level)
        held = {id(thing) for thing in level}
        unheld = set(held)
        outer: list[Any] = []
        skip = {id(level), id(referrers), id(self._known), id(outer), *self._avoid}
        for referrer in referrers:
            if id(referrer) in skip or is_ours(referrer):
                continue
            children = [id(x) for x in gc.get_referents(referrer) if id(x) in held]
            unheld.difference_update(children)
            if children and id(referrer) in self._known:
                self._note_circle(referrer, children[0])
            elif children:
                self._known[id(referrer)] = referrer
                self._inner[id(referrer)] = children[0]
                outer.append(referrer)
        referrers.clear()  # or it would be found in its turn
        ends = (thing for thing in level if id(thing) in unheld)
        if self._end is None:
            self._end = next(filter(self._may_keep, ends), None)
        return outer

    def _note_circle(self, holder: Any, held: int) -> None:
        if self._closing is None and self._leads(held, id(holder)):
            self._closing = holder, self._known[held]

    def _leads(self, outermost: int, wanted: int) -> bool:
        """Whether the path inwards from an object passes another."""
        at: int | None = outermost
        while at is not None:
            if at == wanted:
                return True
            at = self._inner.get(at)
        return False

    def _may_keep(self, end: object) -> bool:
        """Whether what nothing refers to is more than what a loop goes through.

        Frames are those whose variables are watched: who looks has them.
        """
        is_passing = isinstance(end, types.FrameType) or hasattr(type(end), "__next__")
        return end is not self._target and not is_passing

    def _path(self, outermost: object) -> list[Any]:
        """The objects from the target to one that holds it."""
        path = [id(outermost)]
        while path[-1] in self._inner:
            path.append(self._inner[path[-1]])
        return [self._known[identity] for identity in reversed(path)]

    def without_root(self, modules: dict[int, str], may_end: bool) -> Chain:
        """After no name was found: what nothing refers to, or what goes round.

        Args:
            modules: The names of modules by the identity of their globals.
            may_end: Whether what nothing refers to is the program's.
        """
        if self._end is not None and may_end:
            things = self._path(self._end)
            return Chain(hops_along(things, modules), things, is_open=True)
        if self._closing is None:
            return Chain()
        holder, held = self._closing
        things = self._path(held)
        hops = hops_along(things, modules)
        if is_namespace(holder, held) or isinstance(holder, dict):
            last = Hop("skip")
        else:
            last = hop_to(holder, held, modules)
        start = next((i for i, thing in enumerate(things) if thing is holder), 0)
        around = hops_along(things[start:], modules)
        filled = [b for a, b in pairwise(around) if a.kind == "item"]
        outwards = (*filled, last, *reversed(around), *reversed(hops))
        named = [hop for hop in outwards if hop.kind in ("attr", "cell")]
        return Chain(hops, things, True, named[0] if named else None)
