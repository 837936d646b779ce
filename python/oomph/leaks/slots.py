"""The place that holds something more after each step, and whether it has changed.

Tensors that are kept, one after another, have holders of their own on the way out, such
as the dict that was appended together with them; the first holder that they share is
the one that grows. If there is one tensor alone, which is replaced by a longer one, it
is the variable or the attribute that it is bound to.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oomph.leaks.references import Chain, variables

_FEW = 64  # items of a container that are looked through
_SIZED: tuple[Any, ...] = (list, deque, dict, set)


@dataclass(eq=False, repr=False)
class Slot:
    """A container's items, or what one name is bound to.

    It holds what it watches; so it lives for a few steps at most.

    Attributes:
        holder: The container; or the namespace, the cell or the frame of a name.
        key: The name, or the place in the container; None: the items are meant.
        name: The name under which the program knows it; "": it has none.
    """

    holder: Any
    key: Any = None
    name: str = ""

    def state(self) -> Hashable:
        """What differs once the place has changed; the larger of two has more in it."""
        if isinstance(self.holder, functools._lru_cache_wrapper):
            return self.holder.cache_info().currsize
        if self.key is None:
            return _length(self.holder)
        value = self._value()
        version = 0
        if isinstance(value, torch.Tensor) and not value.is_inference():
            version = value._version
        return id(value), version

    def _value(self) -> Any:
        holder, key = self.holder, self.key
        if isinstance(holder, types.FrameType):
            return variables(holder).get(key)
        if isinstance(holder, types.CellType):
            return holder.cell_contents
        if isinstance(holder, dict):
            return dict.get(holder, key)
        if isinstance(holder, list):
            return holder[key] if key < len(holder) else None
        return getattr(holder, key, None)

    def is_meant_by(self, value: object) -> bool:
        """Whether an object is the holder, or the one whose namespace that is."""
        if value is self.holder:
            return True
        try:
            namespace = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return False
        return namespace is self.holder or any(
            inner is self.holder or _contains(inner, self.holder)
            for inner in list(namespace.values())
        )


def _contains(container: object, thing: object) -> bool:
    """Whether one of a few items is it."""
    if not isinstance(container, (dict, list, tuple)) or len(container) > _FEW:
        return False
    items = container.values() if isinstance(container, dict) else container
    return any(item is thing for item in list(items))


def _length(holder: Any) -> int:
    """Its own, not what a subclass says."""
    base = next(kind for kind in _SIZED if isinstance(holder, kind))
    return int(base.__len__(holder))


def shared(chain: Chain, chains: Sequence[Chain]) -> int | None:
    """The place on a chain of the nearest holder that it shares with most others.

    Args:
        chain: Of a tensor, with hops.
        chains: Of tensors of its kind, which were made in other rounds.

    Returns:
        An index into ``chain.things``; None: they share nothing.
    """
    others = [
        {id(thing) for thing in other.things[1:]}
        for other in chains
        if other is not chain
    ]
    counts = [sum(id(thing) in other for other in others) for thing in chain.things]
    counts[:1] = [0] * len(counts[:1])
    if chain.hops and chain.hops[-1].kind in ("global", "class"):
        counts[-1] = 0  # a module holds much else
    most = max(counts, default=0)
    return counts.index(most) if most > 0 else None


def find(chain: Chain, place: int) -> Slot | None:
    """The slot that grows: the holder at this place, if it has items; else its name.

    Args:
        chain: From a tensor outwards.
        place: Index of the holder among its things; 0 for the tensor itself.
    """
    things = chain.things
    if not things:
        return None
    thing = things[place]
    if isinstance(thing, functools._lru_cache_wrapper):
        return Slot(thing, name=getattr(thing, "__name__", ""))
    if place > 0 and isinstance(thing, _SIZED):
        return Slot(thing, name=_name_beyond(chain, place))
    namespace = getattr(thing, "__dict__", None)
    values = namespace.values() if isinstance(namespace, dict) else ()
    if place > 0 and any(value is things[place - 1] for value in values):
        return Slot(namespace, name=_name_beyond(chain, place))
    for inner in range(place, len(things)):
        found = _bound(things, inner)
        if found is not None:
            return found
    if chain.frame is not None:
        return Slot(chain.frame, chain.hops[-1].name, chain.hops[-1].name)
    return None


def _bound(things: list[Any], inner: int) -> Slot | None:
    """The name that the next holder outwards binds a thing to."""
    if inner + 1 >= len(things):
        return None
    holder, held = things[inner + 1], things[inner]
    if isinstance(holder, dict):
        names = [name for name, value in dict.items(holder) if value is held]
        return Slot(holder, names[0], str(names[0])) if names else None
    if isinstance(holder, types.CellType):
        return Slot(holder, "cell_contents")
    if isinstance(holder, list):
        places = [i for i, value in enumerate(holder) if value is held]
        return Slot(holder, places[0]) if places else None
    namespace = getattr(holder, "__dict__", None)  # which need not have existed so far
    if isinstance(namespace, dict) and namespace is not held:
        return _bound([held, namespace], 0)
    return None


def _name_beyond(chain: Chain, place: int) -> str:
    """What the program calls a container, or the object whose namespace it is."""
    things = chain.things
    for inner in range(place, len(things)):
        slot = _bound(things, inner)
        if slot is not None and isinstance(slot.key, str):
            return slot.name
    return chain.hops[-1].name if chain.frame is not None else ""
