"""Who holds the memory of a device: each block in use gets a category.

The core lists the blocks, with the lines that asked for them; Python knows parameters,
gradients, the state of optimizers, and the tensors that variables hold. What nobody in
Python holds is held by autograd: it was saved for backward, or is on its way through
it. Nothing here keeps a tensor alive, calls into PyTorch's dispatcher, or takes memory
of the device.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from oomph import _C
from oomph.base import collector
from oomph.diagnosis import kept_errors
from oomph.diagnosis.kept_errors import KeptErrors
from oomph.diagnosis.program import (
    Program,
    bucket_sizes,
    is_part,
    note_inputs,
    note_modules,
    note_optimizer,
    shape_of,
    tensors_in,
)
from oomph.memory import sites

INPUTS_SEEN = 64  # whose shapes are looked at

# As _torch.held() has them.
_HELD, _MADE, _SAVED, _GRADIENT, _HALF, _GONE = 1, 2, 4, 8, 16, 32


class Category(IntEnum):
    """What a block is to the program."""

    UNKNOWN = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER = 3
    ACTIVATION = 4
    TEMPORARY = 5
    INPUT = 6
    GRAPH = 7
    WORKSPACE = 8
    GARBAGE = 9
    KEPT = 10
    CACHE = 11
    BUCKET = 12


PASSING = (Category.ACTIVATION, Category.TEMPORARY)  # gone when a step has ended
TITLES = {
    Category.PARAMETER: "parameters and buffers",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER: "optimizer state",
    Category.ACTIVATION: "activations saved for backward",
    Category.TEMPORARY: "temporaries",
    Category.BUCKET: "DDP buckets",
    Category.CACHE: "cache of keys and values",
    Category.INPUT: "inputs and other tensors",
    Category.GRAPH: "graph pools",
    Category.WORKSPACE: "workspaces of cuBLAS",
    Category.GARBAGE: "garbage: unreachable objects, collected only now",
    Category.KEPT: "kept by errors that were caught",
    Category.UNKNOWN: "unknown",
}


class BlockList:
    """The blocks in use of a device, in columns of equal length.

    Attributes:
        device: Index of the device.
        addrs: Where each begins.
        sizes: Bytes that each occupies.
        sites: Numbers of the lines that asked for them, for ``sites.resolve``.
        marks: ``_C.MARK_*`` of each.
    """

    def __init__(self, device: int, columns: tuple[bytes, ...]) -> None:
        self.device = device
        self.addrs, self.sizes = array("Q", columns[0]), array("Q", columns[1])
        self.sites, self.marks = array("I", columns[2]), columns[3]

    def __len__(self) -> int:
        """How many blocks."""
        return len(self.addrs)

    @classmethod
    def take(cls, device: int) -> BlockList:
        """Of this moment."""
        return cls(device, _C.block_list(device))


def sort_out(device: int) -> tuple[BlockList, frozenset[int]]:
    """Runs Python's collector, unless a stream captures.

    Returns:
        The blocks in use before, and the addresses of those that were garbage: they
        are freed now.
    """
    before = BlockList.take(device)
    if _C.collect_garbage(device) == 0:
        return before, frozenset()
    return before, frozenset(before.addrs) - frozenset(BlockList.take(device).addrs)


@dataclass
class Breakdown:
    """The category of each block in use, and the program that they belong to.

    Attributes:
        blocks: The blocks.
        categories: Of each, as numbers.
        program: What was seen of it.
        errors: That were caught, and hold some of the blocks.
    """

    blocks: BlockList
    categories: bytearray
    program: Program
    errors: list[KeptErrors]

    def groups(self) -> dict[tuple[int, int], list[int]]:
        """Bytes and count of the blocks of each site and category."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for site, size, category in zip(
            self.blocks.sites, self.blocks.sizes, self.categories, strict=True
        ):
            group = groups[site, category]
            group[0] += size
            group[1] += 1
        return groups

    def note_cache(self, addrs: set[int], least: int, most: int) -> None:
        """Notes a cache, and what the same lines made for it before they failed.

        Args:
            addrs: Of its blocks.
            least: Bytes of the smallest.
            most: Of the largest that a call makes of one.
        """
        blocks = self.blocks
        rows = [*zip(blocks.addrs, blocks.sizes, blocks.sites, strict=True)]
        lines = {site for addr, _, site in rows if site and addr in addrs}
        for i, (addr, size, site) in enumerate(rows):
            if addr in addrs or (site in lines and least <= size <= most):
                self.categories[i] = Category.CACHE


def look(
    blocks: BlockList,
    alive: BlockList | None = None,
    graph: bool = True,
    garbage: frozenset[int] = frozenset(),
) -> Breakdown:
    """Finds out who holds each of the blocks.

    Args:
        blocks: Of now, or of a moment ago.
        alive: Of now, where the first is of a moment ago: what is gone since then was
            a temporary of the operator that failed.
        graph: Whether autograd may hold anything.
        garbage: Addresses of blocks that were garbage (:func:`sort_out`).
    """
    with collector.all_objects() as objects:
        look = _Look(blocks, alive or blocks, objects, graph)
        look.note_garbage(garbage)
        return look.result()


class _Look:
    def __init__(
        self, blocks: BlockList, alive: BlockList, objects: list[Any], graph: bool
    ) -> None:
        self.blocks, self.alive, self.objects = blocks, alive, objects
        self.graph = graph
        self.categories = bytearray(len(blocks))
        self.program = Program()

    def note_garbage(self, addrs: frozenset[int]) -> None:
        """Nobody holds these, and nobody will say so."""
        for i, addr in enumerate(self.blocks.addrs if addrs else ()):
            if addr in addrs:
                self.categories[i] = Category.GARBAGE

    def result(self) -> Breakdown:
        import torch

        self.flags, firsts = self._held(self.objects)
        self.firsts = array("i", firsts)
        kinds = set(map(type, self.objects))
        self._mark_all(self.flags, _GRADIENT, Category.GRADIENT)
        self._note_parameters(_subclasses(kinds, torch.nn.Parameter))
        trained = self._note_optimizers(_subclasses(kinds, torch.optim.Optimizer))
        self._note_modules(_subclasses(kinds, torch.nn.Module), trained)
        self._note_rest()
        errors = self._note_errors()
        self._note_inputs()
        return Breakdown(self.blocks, self.categories, self.program, errors)

    def _held(self, objects: list[Any]) -> tuple[bytes, bytes]:
        from oomph import _torch

        blocks = self.blocks
        addrs, alive = blocks.addrs.tobytes(), self.alive.addrs.tobytes()
        return _torch.held(objects, addrs, alive, blocks.device)

    def _mark(self, tensors: list[Any], category: Category) -> None:
        if tensors:
            self._mark_all(self._held(tensors)[0], _HELD, category)

    def _mark_all(self, flags: bytes, wanted: int, category: Category) -> None:
        if any(flag & wanted for flag in set(flags)):
            for i, flag in enumerate(flags):
                if flag & wanted:
                    self.categories[i] = category

    def _note_parameters(self, kinds: set[type]) -> None:
        parameters = [o for o in self.objects if type(o) in kinds and o.is_cuda]
        self.program.parameter_shapes = list(map(shape_of, parameters))
        self._mark(parameters, Category.PARAMETER)

    def _note_modules(self, kinds: set[type], trained: set[int]) -> None:
        modules = [m for m in self.objects if type(m) in kinds]
        entries: list[Any] = []
        for module in modules:
            known = module.__dict__
            entries += (known.get("_parameters") or {}).values()
            entries += (known.get("_buffers") or {}).values()
        self._mark(entries, Category.PARAMETER)
        self.program.is_sharded = any(map(is_part, entries))
        note_modules(self.program, modules, trained)
        self._note_buckets(bucket_sizes(modules))

    def _note_buckets(self, sizes: Counter[int]) -> None:
        """In which DDP sends gradients: only C++ holds them, unless gradients do."""
        for i, size in enumerate(self.blocks.sizes if sizes else ()):
            if sizes[size] and not self.categories[i] and not self.flags[i] & _HELD:
                self.categories[i] = Category.BUCKET
                sizes[size] -= 1

    def _note_optimizers(self, kinds: set[type]) -> set[int]:
        """Gives the identities of the parameters that they have."""
        trained: set[int] = set()
        for optimizer in (o for o in self.objects if type(o) in kinds):
            known = optimizer.__dict__
            state = list(tensors_in(known.get("state") or {}))
            self._mark(state, Category.OPTIMIZER)
            note_optimizer(self.program, type(optimizer).__name__, known)
            for group in known.get("param_groups") or ():
                given = group.get("params", ())
                trained.update(id(p) for p in given if p.requires_grad)
        return trained

    def _note_rest(self) -> None:
        """What is no parameter, no gradient and no state."""
        from oomph import _torch

        known: dict[tuple[int, int, int], Category] = {}
        blocks, categories = self.blocks, self.categories
        known_of = zip(self.flags, blocks.marks, blocks.sites, strict=True)
        for i, key in enumerate(known_of):
            if categories[i]:
                continue
            if key not in known:
                known[key] = self._category(*key)
            categories[i] = known[key]
        for addr in _torch.workspaces():
            if addr in blocks.addrs:
                categories[blocks.addrs.index(addr)] = Category.WORKSPACE
        self.program.half = any(flag & _HALF for flag in set(self.flags))

    def _category(self, flag: int, mark: int, site: int) -> Category:
        if mark & _C.MARK_POOL:
            return Category.GRAPH
        if mark & _C.MARK_WAITING or site & _C.SITE_INFERRED:
            return Category.TEMPORARY
        if not flag & _HELD:
            if flag & _GONE:
                return Category.TEMPORARY
            return Category.ACTIVATION if self.graph else Category.UNKNOWN
        if flag & _MADE:
            return Category.ACTIVATION if flag & _SAVED else Category.TEMPORARY
        if not flag & _SAVED and self._is_in_forward(site):
            return Category.TEMPORARY
        return Category.INPUT

    def _note_errors(self) -> list[KeptErrors]:
        """What steps that failed before have left."""
        found = kept_errors.find(self.objects, self.blocks)
        kept = {addr for errors in found for addr in errors.addrs}
        own = {addr for errors in found for addr in errors.own}
        for i, addr in enumerate(self.blocks.addrs if kept else ()):
            is_passing = self.categories[i] in (*PASSING, Category.INPUT)
            if addr in own or (addr in kept and is_passing):
                self.categories[i] = Category.KEPT
        return found

    def _note_inputs(self) -> None:
        """The shapes of the largest."""
        inputs = (
            (size, first)
            for size, first, category in zip(
                self.blocks.sizes, self.firsts, self.categories, strict=True
            )
            if category == Category.INPUT
        )
        largest = heapq.nlargest(INPUTS_SEEN, inputs)
        note_inputs(self.program, [self.objects[first] for _, first in largest])

    def _is_in_forward(self, site: int) -> bool:
        """Whether the line is in a module's forward.

        Without a graph, any method of its class counts: there, what forward makes looks
        like what was given to it.
        """
        known = sites.resolve(site)
        if known is None:
            return False
        owner, name = known.method
        return owner in self.program.classes and (not self.graph or name == "forward")


def _subclasses(kinds: Iterable[type], of: type) -> set[type]:
    return {kind for kind in kinds if of in kind.__mro__}
