"""Which tensors are on GPUs, since when, and which kind of them grows in number.

Looks at all objects that Python's collector knows, which takes some ten milliseconds;
so it is done only when something is suspected. It keeps weak references alone.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch


@dataclass
class Seen:
    """A tensor that was met."""

    ref: weakref.ref[torch.Tensor]
    kind: Hashable
    since: int  # number of the scan that met it first
    storage: int  # its identity


@dataclass
class Group:
    """Tensors of a kind of which each scan met more."""

    kept: list[Seen]  # met first two scans ago or earlier, and still there
    count: float  # more of them at each scan
    size_bytes: float  # the same in bytes


def _kind(tensor: torch.Tensor) -> Hashable:
    """What tensors have in common that the same line makes; lengths may differ."""
    made_by = tensor.grad_fn
    name = type(made_by).__name__ if made_by is not None else ""
    return tensor.dtype, tensor.dim(), name, tensor.requires_grad, type(tensor)


def _objects() -> tuple[list[torch.Tensor], list[torch.nn.Module]]:
    """All tensors on GPUs, and all modules."""
    objects = gc.get_objects()
    types = set(map(type, objects))
    of_tensors = {kind for kind in types if issubclass(kind, torch.Tensor)}
    of_modules = {kind for kind in types if issubclass(kind, torch.nn.Module)}
    wanted = of_tensors | of_modules
    found = [thing for thing in objects if type(thing) in wanted]
    return (
        [t for t in found if type(t) in of_tensors and _is_on_gpu(t)],
        [m for m in found if type(m) in of_modules],
    )


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    if not tensor.is_cuda:
        return False
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False  # it has none: a sparse one, a functional wrapper
    return storage.device.type == "cuda" and storage.nbytes() > 0  # not a fake one


class Inventory:
    """What successive scans met."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}
        self._counts: list[Counter[Hashable]] = []

    @property
    def scans(self) -> int:
        """How many there were."""
        return len(self._counts)

    def scan(self) -> list[torch.nn.Module]:
        """Meets all tensors. Gives the modules that it met, too."""
        with torch._C.DisableTorchFunctionSubclass():
            tensors, modules = _objects()
            self._note(tensors)
            return modules

    def _note(self, tensors: list[torch.Tensor]) -> None:
        before, self._seen = self._seen, {}
        counts: Counter[Hashable] = Counter()
        for tensor in tensors:
            known = before.get(id(tensor))
            if known is None or known.ref() is not tensor:
                storage = tensor.untyped_storage()._cdata
                ref = weakref.ref(tensor)
                known = Seen(ref, _kind(tensor), self.scans, storage)
            self._seen[id(tensor)] = known
            counts[known.kind] += 1
        self._counts.append(counts)

    def tensors(self) -> list[Any]:
        """What the last scan met and what is still there."""
        return [
            t for t in (seen.ref() for seen in self._seen.values()) if t is not None
        ]

    def growing(self, scans: int) -> list[Group]:
        """Kinds of which each of the last scans met more than the one before.

        Only what came after the first of these scans and outlived two more is given:
        what the program made in the last step may be on its way.
        """
        last = self._counts[-scans:]
        first = self.scans - scans
        groups = []
        for kind in last[-1]:
            numbers = [counts[kind] for counts in last]
            if any(b <= a for a, b in pairwise(numbers)):
                continue
            alive = [seen for seen in self._seen.values() if seen.kind == kind]
            kept = [
                seen
                for seen in alive
                if first < seen.since <= self.scans - 3 and seen.ref() is not None
            ]
            if kept:
                count = (numbers[-1] - numbers[0]) / (scans - 1)
                groups.append(Group(kept, count, count * _mean_bytes(kept)))
        return groups


def _mean_bytes(seen: list[Seen]) -> float:
    sizes = {}
    for each in seen:
        tensor = each.ref()
        if tensor is not None:
            sizes[each.storage] = tensor.untyped_storage().nbytes()
    return sum(sizes.values()) / max(1, len(sizes))
