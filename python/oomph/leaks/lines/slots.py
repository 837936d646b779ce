"""The places that may hold something more after each step, and whether they have.

On the way out from a tensor that is kept there are containers: one of them gets an item
more whenever such a tensor is kept. The dict that was appended together with a tensor
does not; so all are followed, and what grows is meant. If none does, something has been
bound anew: a tuple, a linked list, or one tensor that is replaced by a longer one.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from oomph.holders.chain import Chain, is_namespace, name_of_cell, variable_of
from oomph.holders.frames import variables

_FEW = 64  # items of a container that are looked through
_SIZED: tuple[Any, ...] = (list, deque, dict, set)
_OPEN = (
    *_SIZED,
    tuple,
    frozenset,
    torch.Tensor,
    contextvars.Context,
    types.CellType,
    types.CoroutineType,
    types.FrameType,
    types.FunctionType,
    types.GeneratorType,
    types.MethodType,
    types.TracebackType,
)
_PLAIN = (str, bytes, int, tuple)  # keys that hold no memory of a GPU
_REFERENTS = object()


@dataclass(eq=False, repr=False)
class Slot:
    """A container's items, or what one name is bound to.

    It holds what it watches; so it lives for a few steps at most.

    Attributes:
        holder: The container; or the namespace, the cell or the frame of a name.
        key: The name, or the place in the container; None: the items are meant;
            ``_REFERENTS``: whatever it refers to, as it does not say in what.
        name: The name under which the program knows it; "": it has none.
        in_place: Whether a tensor whose values were changed in place has changed the
            slot; one that got longer has.
        held: The type of what was found in a container that does not say its items.
    """

    holder: Any
    key: Any = None
    name: str = ""
    in_place: bool = True
    held: type | None = None

    @property
    def is_container(self) -> bool:
        """Whether it is what is in the holder that is meant, not what a name is."""
        return self.key is None or self.key is _REFERENTS

    @property
    def place(self) -> Hashable:
        """The same for each slot of this holder and key."""
        return id(self.holder), self.key

    def state(self) -> Hashable:
        """What differs once the place has changed; the larger of two has more in it."""
        if isinstance(self.holder, functools._lru_cache_wrapper):
            return self.holder.cache_info().currsize
        if self.key is None:
            return _length(self.holder)
        if self.key is _REFERENTS:
            return sum(type(item) is self.held for item in _referents(self.holder))
        value = self._value()
        if not isinstance(value, torch.Tensor):
            return id(value), 0, 0
        counts = self.in_place and not value.is_inference()
        return id(value), value._version if counts else 0, _numel(value)

    def unfilled(self) -> Slot | None:
        """What came last, if it came empty and is yet to be filled.

        An empty container, or None in its place: ``cache["name"] = None``.
        """
        items: Any = self.holder
        if self.key is not None or not isinstance(items, dict | list) or not items:
            return None
        key: Any = _length(items) - 1
        if isinstance(items, dict):
            key = next(reversed(dict.keys(items)))
            last = dict.get(items, key)
        else:
            last = list.__getitem__(items, key)
        if last is None and isinstance(key, _PLAIN):  # else the key may be what is kept
            return Slot(items, key, self.name)
        is_empty = isinstance(last, _SIZED) and _length(last) == 0
        return Slot(last, name=self.name) if is_empty else None

    def _value(self) -> Any:
        holder, key = self.holder, self.key
        if isinstance(holder, types.FrameType):
            return variables(holder).get(key)
        if isinstance(holder, types.CellType):
            return holder.cell_contents
        if isinstance(holder, contextvars.Context):
            return holder.get(key)
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


def _numel(tensor: torch.Tensor) -> int:
    """Its length, whatever a subclass says."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.numel()


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


def containers(chain: Chain) -> list[Slot]:
    """What has items on the way outwards, and no bound of its own.

    The namespaces of objects and modules are given by :func:`namespaces`.

    Args:
        chain: From a tensor outwards.
    """
    found = []
    for place, thing in enumerate(chain.things[1:], 1):
        if isinstance(thing, functools._lru_cache_wrapper):
            found.append(Slot(thing, name=getattr(thing, "__name__", "")))
        elif (
            isinstance(thing, _SIZED)
            and getattr(thing, "maxlen", None) is None
            and not _is_namespace(chain, place)
        ):
            found.append(Slot(thing, name=_name_beyond(chain, place)))
        elif _is_closed(thing) and not _is_read_by_loop(chain, place):
            held = type(chain.things[place - 1])
            name = _name_beyond(chain, place)
            found.append(Slot(thing, _REFERENTS, name, held=held))
    return found


def _referents(thing: Any) -> Iterable[Any]:
    """What it refers to; the collector knows of no array's items."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.ndarray):
        return thing.flat if thing.dtype == object else ()
    return gc.get_referents(thing)


def _is_read_by_loop(chain: Chain, place: int) -> bool:
    """Whether it belongs to an iterator, which is filled by being read."""
    return any(hasattr(type(thing), "__next__") for thing in chain.things[place:])


def _is_closed(thing: Any) -> bool:
    """Whether it is an object of a type in C, which may hold what nobody can list."""
    is_in_c = type(thing).__dictoffset__ == 0 and not hasattr(thing, "__slots__")
    return is_in_c and not isinstance(thing, _OPEN)


def names(chain: Chain, in_place: bool = True) -> list[Slot]:
    """What is bound to a name on the way outwards, the tensor first.

    Args:
        chain: From a tensor outwards.
        in_place: Whether a tensor whose values change counts as bound anew.
    """
    bound = [_bound(chain.things, place) for place in range(len(chain.things))]
    found = [slot for slot in bound if slot is not None]
    if chain.frame is not None:
        name = chain.hops[-1].name
        found.append(Slot(chain.frame, name, name))
    for slot in found:
        slot.in_place = in_place
    return found


def namespaces(chain: Chain) -> list[Slot]:
    """What may get one more name, such as an object by ``setattr()``.

    Args:
        chain: From a tensor outwards.
    """
    return [
        Slot(thing, name=_name_beyond(chain, place))
        for place, thing in enumerate(chain.things)
        if place > 0 and _is_namespace(chain, place)
    ]


def _is_namespace(chain: Chain, place: int) -> bool:
    """Whether a holder is where an object, a class or a module has its names."""
    things = chain.things
    if not isinstance(things[place], dict):
        return False
    if place + 1 == len(things):
        return chain.hops[-1].kind == "global"
    return is_namespace(things[place + 1], things[place])


def _bound(things: list[Any], inner: int) -> Slot | None:
    """The name that the next holder outwards binds a thing to."""
    if inner + 1 >= len(things):
        return None
    holder, held = things[inner + 1], things[inner]
    if isinstance(holder, dict):
        keys = [key for key, value in dict.items(holder) if value is held]
        return Slot(holder, keys[0], str(keys[0])) if keys else None
    if isinstance(holder, types.CellType):
        outer = things[inner + 2 : inner + 4]  # a tuple of cells, and the function
        functions = (f for f in outer if isinstance(f, types.FunctionType))
        function = next(functions, None)
        name = name_of_cell(function, holder) if function is not None else None
        return Slot(holder, "cell_contents", name or "")
    if isinstance(holder, list):
        places = [i for i, value in enumerate(holder) if value is held]
        return Slot(holder, places[0]) if places else None
    if isinstance(holder, contextvars.Context):
        variable = variable_of(holder, things)
        return None if variable is None else Slot(holder, variable, variable.name)
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
