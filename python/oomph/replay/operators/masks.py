"""What is known of masks whose values nobody knows.

Masks that compare the same values with numbers share the rows among them: ``x == 0``
and ``x == 1`` choose none twice, nor do a mask and its complement, or parts of one that
was written. And a mask of zeros that so many places were written to chooses no more.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

MASKS = (torch.bool, torch.uint8)
_aten = torch.ops.aten

# An end is a number, and 1 or -1 if it lies just above or below it.
_End = tuple[float, int]
Interval = tuple[_End, _End]
_LEAST, _MOST = (-math.inf, 0), (math.inf, 0)

_COMPARED: dict[Any, Callable[[float], list[Interval]]] = {
    _aten.eq.Scalar: lambda c: [((c, 0), (c, 0))],
    _aten.ne.Scalar: lambda c: [(_LEAST, (c, -1)), ((c, 1), _MOST)],
    _aten.lt.Scalar: lambda c: [(_LEAST, (c, -1))],
    _aten.le.Scalar: lambda c: [(_LEAST, (c, 0))],
    _aten.gt.Scalar: lambda c: [((c, 1), _MOST)],
    _aten.ge.Scalar: lambda c: [((c, 0), _MOST)],
}
"""The values for which a comparison with a number is true."""
_TRUE, _FALSE = _COMPARED[_aten.ne.Scalar](0), _COMPARED[_aten.eq.Scalar](0)
_ZEROS = {_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default}
_NOT = {_aten.logical_not.default, _aten.bitwise_not.default}
_AND = {_aten.logical_and.default, _aten.bitwise_and.Tensor, _aten.mul.Tensor}
_OR = {_aten.logical_or.default, _aten.bitwise_or.Tensor, _aten.add.Tensor}
_JOIN = {_aten.cat.default, _aten.stack.default}
_COPY = {_aten.clone.default, _aten._to_copy.default}
_PUT = {_aten.index_put_.default, _aten.index_put.default}
_SCATTER = {_aten.scatter_.value, _aten.scatter.value, _aten.index_fill_.int_Scalar}


class Class(NamedTuple):
    """Rows that a mask may choose, of some that several masks share.

    Attributes:
        family: What they share: the values that they compare.
        rows: That the family has.
        where: Of the values those for which it is true; of parts, which one it is.
    """

    family: Any
    rows: int
    where: tuple[Any, ...]

    def excludes(self, other: Class) -> bool:
        """Whether no row is of both, which are of one family."""
        return not any(
            max(a[0], b[0]) <= min(a[1], b[1]) for a in self.where for b in other.where
        )


@dataclass
class _Known:
    """Of a tensor: what classes it is of, and how many places are not 0 at the most."""

    classes: tuple[Class, ...] = ()
    most: int | None = None


@dataclass
class _Storage:
    """What is known of tensors in one storage, by offset and number of elements."""

    alive: weakref.ref[Any]
    number: int  # of all that there were, as identities come again
    version: int = 0
    known: dict[tuple[int, int], _Known] = field(default_factory=dict)


class Masks:
    """Follows operators that make masks."""

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}
        self._numbers = itertools.count()

    def note(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """An operator gave a result."""
        if func.namespace != "aten" or not isinstance(result, torch.Tensor):
            return
        if result.layout is not torch.strided or not args:
            return
        known = self._of_result(func, args)
        if func._schema.is_mutable:
            storage = self._storage(result)
            storage.version += 1
            storage.known.clear()
        if known is not None:
            storage = self._storage(result)
            storage.known[_place(result)] = known

    def most(self, mask: torch.Tensor) -> int | None:
        """How many rows it may choose at the most; None: all."""
        return self._known(mask).most

    def classes(self, mask: torch.Tensor) -> tuple[Class, ...]:
        """What it shares with other masks; itself it shares with its complement."""
        return (*self._known(mask).classes, self._class(mask, _TRUE), *self._part(mask))

    def _of_result(self, func: Any, args: Sequence[Any]) -> _Known | None:
        first = args[0]
        if func in _ZEROS:
            return _Known(most=0)
        if func in _JOIN:
            return _Known(most=self._sum(first))
        if not isinstance(first, torch.Tensor):
            return None
        if func in _COMPARED:
            where = _COMPARED[func](float(args[1]))
            return _Known((self._class(first, where),), self._above(first, where))
        if func in _NOT:
            return _Known((self._class(first, _FALSE),))
        if func in _COPY:
            return self._known(first)
        if func in _PUT or func in _SCATTER:
            return self._written(func, args)
        if func in _AND or func in _OR:
            return self._both(func, args)
        return None

    def _both(self, func: Any, args: Sequence[Any]) -> _Known | None:
        """Of two masks; other tensors are summed up and multiplied, too."""
        if not all(isinstance(m, torch.Tensor) and is_mask(m) for m in args[:2]):
            return None
        if func in _OR:
            return _Known(most=self._sum(args[:2]))
        first, second = (self._known(mask) for mask in args[:2])
        least = [known.most for known in (first, second) if known.most is not None]
        classes = (*self.classes(args[0]), *self.classes(args[1]))
        return _Known(classes, min(least, default=None))

    def _written(self, func: Any, args: Sequence[Any]) -> _Known | None:
        """Zeros that numbers were written to, at places that may all differ."""
        first, most = args[0], self._known(args[0]).most
        if most is None:
            return None
        if func in _PUT:
            found = [index for index in args[1] if index is not None]
            if any(index.dtype in MASKS for index in found):
                return None
            counts = [index.numel() for index in found]
            each = math.prod(first.shape[len(args[1]) :])
            each *= math.prod(
                n for n, i in zip(first.shape, args[1], strict=False) if i is None
            )
            more = max(counts, default=0) * each
        elif func is _aten.index_fill_.int_Scalar:
            more = args[2].numel() * first.numel() // max(1, first.shape[args[1]])
        else:
            more = args[2].numel()
        return _Known(most=min(first.numel(), most + more))

    def _sum(self, tensors: Sequence[Any]) -> int | None:
        known = [self._known(tensor).most for tensor in tensors]
        return None if None in known else sum(filter(None, known))

    def _above(self, tensor: torch.Tensor, where: list[Interval]) -> int | None:
        """Places that are not 0, if the values for which it is true are none."""
        has_zero = any(low <= (0, 0) <= high for low, high in where)
        return None if has_zero else self._known(tensor).most

    def _class(self, tensor: torch.Tensor, where: list[Interval]) -> Class:
        storage = self._storage(tensor)
        family = storage.number, storage.version, _place(tensor)
        if not tensor.is_floating_point():
            where = [(_up(low), _down(high)) for low, high in where]
        return Class(family, tensor.numel(), tuple(where))

    def _part(self, mask: torch.Tensor) -> tuple[Class, ...]:
        """Of a mask that was written, and that it is a slice of."""
        storage = self._storage(mask)
        whole = [
            known.most
            for (_, count), known in storage.known.items()
            if known.most is not None and count > mask.numel()
        ]
        if not whole:
            return ()
        family = storage.number, storage.version
        offset = float(mask.storage_offset())
        return (Class(family, min(whole), (((offset, 0), (offset, 0)),)),)

    def _known(self, tensor: torch.Tensor) -> _Known:
        return self._storage(tensor).known.get(_place(tensor), _Known())

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._storages:
            alive = weakref.ref(storage, lambda _: self._storages.pop(key, None))
            self._storages[key] = _Storage(alive, next(self._numbers))
        return self._storages[key]


def is_mask(index: Any) -> bool:
    """Whether an index is one."""
    return isinstance(index, torch.Tensor) and index.dtype in MASKS


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Where in its storage it begins, and how many elements it has."""
    return int(tensor.storage_offset()), tensor.numel()


def _up(end: _End) -> _End:
    """The first whole number that is not below an end."""
    number, side = end
    if math.isinf(number):
        return end
    return (math.floor(number) + 1.0 if side > 0 else float(math.ceil(number))), 0


def _down(end: _End) -> _End:
    """The last that is not above it."""
    number, side = end
    if math.isinf(number):
        return end
    return (math.ceil(number) - 1.0 if side < 0 else float(math.floor(number))), 0
