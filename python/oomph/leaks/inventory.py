"""Which tensors are on GPUs, since when, and which kind of them grows in number.

The first look is at all objects that Python's collector knows, which takes some ten
milliseconds; later ones are at those that came since. It keeps weak references alone.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph import _C
from oomph.leaks.lines.allocated import storage_of

_SCANS_MIN = 3
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # which have memory, if they are strided


@dataclass(eq=False)
class Seen:
    """A tensor that was met.

    Or the storage of one: where another tensor has its place now, as by
    ``state = state.detach()``, that is meant.
    """

    ref: weakref.ref[torch.Tensor]
    kind: Hashable
    since: int  # number of the scan that met it first
    storage: int  # its identity; 0: it has none
    size_bytes: int  # of that
    storage_ref: StorageWeakRef | None  # nothing else gets its identity meanwhile
    is_held: bool = True  # in Python, at the last scan

    @property
    def is_gone(self) -> bool:
        """Whether the tensor has been freed, and its memory."""
        ref = self.storage_ref
        is_freed = ref is None or ref.expired()  # type: ignore[no-untyped-call]
        return is_freed and self.ref() is None


@dataclass
class Group:
    """Tensors of a kind of which each scan met more that stay."""

    kind: Hashable
    kept: list[Seen]  # met after the first scan, and still there one scan later
    count: float  # by so many there are more in a round
    size_bytes: float  # the same in bytes


def _kind(tensor: torch.Tensor) -> Hashable:
    """What tensors have in common that the same line makes; lengths may differ."""
    made_by = tensor.grad_fn
    name = type(made_by).__name__ if made_by is not None else ""
    has_graph = name, tensor.requires_grad
    return tensor.device, tensor.dtype, tensor.dim(), has_graph, type(tensor)


class _Objects:
    """All tensors and modules. Those that were met before are remembered."""

    def __init__(self) -> None:
        self.mark: object = None  # of when they were met last
        self._tensors: dict[int, weakref.ref[Any]] = {}
        self._modules: dict[int, weakref.ref[Any]] = {}

    def meet(self) -> tuple[list[torch.Tensor], list[torch.nn.Module]]:
        """Gives all tensors that keep GPU memory now, and all modules."""
        kinds = torch.Tensor, torch.nn.Module
        found, self.mark = _C.instances(kinds, self.mark)
        # By their types, whatever they pretend to be.
        tensors = [thing for thing in found if issubclass(type(thing), torch.Tensor)]
        modules = [thing for thing in found if issubclass(type(thing), torch.nn.Module)]
        all_tensors = _with_known(tensors, self._tensors)
        return (
            [tensor for tensor in all_tensors if _keeps_gpu_memory(tensor)],
            _with_known(modules, self._modules),
        )


def _with_known(found: list[Any], known: dict[int, weakref.ref[Any]]) -> list[Any]:
    """What was found, and what is left of what was known; the former is known now."""
    there = {key: thing for key, ref in known.items() if (thing := ref()) is not None}
    for key in known.keys() - there.keys():
        del known[key]
    known.update((id(thing), weakref.ref(thing)) for thing in found)
    there.update((id(thing), thing) for thing in found)
    return list(there.values())


def _keeps_gpu_memory(tensor: torch.Tensor) -> bool:
    """Whether it is on a GPU, or has a graph, which may go back to one."""
    if not tensor.is_cuda:
        return tensor.grad_fn is not None
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:
        try:
            return tensor.data_ptr() != 0
        except RuntimeError:
            return False  # what torch.func makes of a tensor, which has the memory
    storage = storage_of(tensor)
    if storage is None:
        return False
    return storage.device.type == "cuda" and storage.nbytes() > 0  # not a fake one


def _sizes(kept: Iterable[Seen]) -> list[tuple[Hashable, int]]:
    """Kind and bytes of each storage."""
    sizes = {(seen.kind, seen.storage): seen.size_bytes for seen in kept}
    return [(kind, size_bytes) for (kind, _), size_bytes in sizes.items()]


def _references(tensors: list[torch.Tensor]) -> list[int]:
    """How many there are to each in Python, those of this list and of here as well.

    All that C++ has together, such as autograd's saved tensors, counts as one.
    """
    owner = _count_of_owner()
    return [sys.getrefcount(t) - owner * (_uses(t) > 1) for t in tensors]


def _uses(tensor: torch.Tensor) -> int:
    """How many references there are to it in C++."""
    return int(tensor._use_count())  # type: ignore[attr-defined]


@functools.cache
def _count_of_owner() -> int:
    """What Python counts if C++ holds a tensor that Python knows.

    1 from PyTorch 2.10 on; where it is 0, no tensor is known to be held by C++ alone.
    """
    (tensor,) = tensors = [torch.empty(1, device="cpu")]
    before = sys.getrefcount(tensor)
    with torch.inference_mode(False), torch.enable_grad():
        view = tensors[0].view(1)  # which knows its base
    return (_uses(view) > 0) * (sys.getrefcount(tensor) - before)


@functools.cache
def _references_of_ours() -> int:
    """Those of a tensor that is in no other place than this module's list."""
    return _references([torch.empty(1, device="cpu")])[0]


def _are_held(tensors: list[torch.Tensor]) -> list[bool]:
    """Whether each has a reference in Python besides that of this list."""
    if _count_of_owner() == 0:
        return [True] * len(tensors)
    ours = _references_of_ours()
    return [count > ours for count in _references(tensors)]


class Inventory:
    """What successive scans met.

    Tensors that a program makes, uses and frees are of no interest, however many there
    are; so of each kind those are counted that were there at the scan before, too.

    Args:
        kinds: The numbers of kinds, which it shares with others; None: its own.
    """

    def __init__(self, kinds: dict[Hashable, int] | None = None) -> None:
        self.rounds: list[int] = []  # at whose ends it scanned
        self._objects = _Objects()
        self._kinds = {} if kinds is None else kinds
        self._seen: dict[int, Seen] = {}
        self._stayed: list[Counter[Hashable]] = []  # at each scan, by kind
        self._sizes: Counter[Hashable] = Counter()  # their bytes at the last one
        self._there: list[Counter[Hashable]] = []  # all, whether they stayed or not
        self._new: list[Counter[Hashable]] = []  # those that came after the first scan

    @property
    def mark(self) -> object:
        """Of when the last scan began, for `_C.newer`."""
        return self._objects.mark

    @property
    def scans(self) -> int:
        """How many there were."""
        return len(self.rounds)

    def scan(self, number: int) -> list[torch.nn.Module]:
        """Meets all tensors at the end of a round. Gives the modules it met, too."""
        with torch._C.DisableTorchFunctionSubclass():
            tensors, modules = self._objects.meet()
            self._note(tensors)
            self.rounds.append(number)
            return modules

    def _note(self, tensors: list[torch.Tensor]) -> None:
        before, self._seen, now = self._seen, {}, self.scans
        left = {
            seen.storage: seen
            for seen in before.values()
            if seen.storage_ref is not None and seen.ref() is None
        }
        for tensor, is_held in zip(tensors, _are_held(tensors), strict=True):
            seen = before.get(id(tensor))
            if seen is None or seen.ref() is not tensor:
                seen = self._meet(tensor, left)
            seen.is_held = is_held
            self._seen[id(tensor)] = seen
        old = [seen for seen in self._seen.values() if seen.since < now]
        self._there.append(Counter(seen.kind for seen in self._seen.values()))
        self._stayed.append(Counter(seen.kind for seen in old))
        self._new.append(Counter(seen.kind for seen in old if seen.since > 0))
        self._sizes.clear()
        for kind, size_bytes in _sizes(old):
            self._sizes[kind] += size_bytes

    def _meet(self, tensor: torch.Tensor, left: dict[int, Seen]) -> Seen:
        """A tensor that was not met before.

        Args:
            tensor: It.
            left: Tensors that are gone, by the storages that they had.
        """
        kind = self._kinds.setdefault(_kind(tensor), len(self._kinds))
        storage = storage_of(tensor)
        if storage is None:
            return Seen(weakref.ref(tensor), kind, self.scans, 0, 0, None)
        known = left.pop(storage._cdata, None)
        if known is not None and known.kind == kind:
            known.ref = weakref.ref(tensor)
            return known
        # What was there from the beginning is no growth, whatever takes its place.
        ref = None
        if self.scans > 0:
            ref = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        size_bytes = storage.nbytes()
        return Seen(
            weakref.ref(tensor), kind, self.scans, storage._cdata, size_bytes, ref
        )

    def tensors(self) -> list[Any]:
        """What the last scan met and what Python still holds."""
        held = (seen.ref() for seen in self._seen.values() if seen.is_held)
        return [tensor for tensor in held if tensor is not None]

    def is_held(self, tensor: torch.Tensor) -> bool:
        """Whether Python held it at the last scan: else only C++ does, as a graph."""
        seen = self._seen.get(id(tensor))
        return seen is None or seen.ref() is not tensor or seen.is_held

    def growing(self, all_grows: bool) -> list[Group]:
        """Kinds of which more stayed at the last scan than at the one before.

        Args:
            all_grows: Memory as a whole has grown: what was there at first and went
                does not count, such as garbage.
        """
        if self.scans < _SCANS_MIN:
            return []
        last = (self._new if all_grows else self._stayed)[-2:]
        first = self.scans - _SCANS_MIN  # met at this scan at the latest: not new
        over = self.rounds[-2] - self.rounds[first]
        grown = {kind for kind in last[1] if last[1][kind] > last[0][kind]}
        groups = []
        for kind, kept in self._kept(grown).items():
            sizes = sum(size_bytes for _, size_bytes in _sizes(kept))
            groups.append(Group(kind, kept, len(kept) / over, sizes / over))
        return groups

    def _kept(self, kinds: set[Hashable]) -> dict[Hashable, list[Seen]]:
        """Of each of these kinds what came between the last scans, and has stayed."""
        first = self.scans - _SCANS_MIN  # met at this scan at the latest: not new
        found: dict[Hashable, list[Seen]] = defaultdict(list)
        last = self.scans - 1
        for seen in self._seen.values():
            if seen.kind in kinds and first < seen.since < last:
                found[seen.kind].append(seen)
        return {
            kind: sorted(kept, key=lambda seen: seen.since)
            for kind, all_kept in found.items()
            if (kept := [seen for seen in all_kept if seen.ref() is not None])
        }

    def kept(self, kinds: set[Hashable]) -> list[Seen]:
        """Of these kinds what came between the last scans, and has stayed since.

        The oldest come first, as far as it is known.
        """
        kept = (seen for each in self._kept(kinds).values() for seen in each)
        return sorted(kept, key=lambda seen: seen.since)

    def stayed(self, kinds: set[Hashable]) -> tuple[int, int]:
        """How many of these kinds were there at the last two scans, and their bytes."""
        count = sum(self._stayed[-1][kind] for kind in kinds) if self._stayed else 0
        return count, sum(self._sizes[kind] for kind in kinds)

    def rests(self, kinds: set[Hashable]) -> bool:
        """Whether no more of these kinds were there than at the scan before."""
        if self.scans < _SCANS_MIN:
            return False
        before, now = self._there[-2:]
        return not any(now[kind] > before[kind] for kind in kinds)

    def has_grown(self, kinds: set[Hashable]) -> bool:
        """Whether more of one of these kinds stayed than at the scan before.

        The first scan knows of nothing that stayed.
        """
        if self.scans < _SCANS_MIN:
            return False
        before, now = self._stayed[-2:]
        return any(now[kind] > before[kind] for kind in kinds)
