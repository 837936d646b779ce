"""Who holds the memory of a device: each block in use gets a category.

The core lists the blocks, with the lines that asked for them; Python knows parameters,
gradients, the state of optimizers, and the tensors that variables hold. What nobody in
Python holds is held by autograd: it was saved for backward, or is on its way through
it. Nothing here keeps a tensor alive, calls into PyTorch's dispatcher, or takes memory
of the device.
"""

from __future__ import annotations

import gc
import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from oomph import _C, sites


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


TITLES = {
    Category.PARAMETER: "parameters and buffers",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER: "optimizer state",
    Category.ACTIVATION: "activations saved for backward",
    Category.TEMPORARY: "temporaries",
    Category.INPUT: "inputs and other tensors",
    Category.GRAPH: "graph pools",
    Category.WORKSPACE: "workspaces of cuBLAS",
    Category.UNKNOWN: "unknown",
}


class Census:
    """The blocks in use of a device, in columns of equal length.

    Attributes:
        device: Index of the device.
        addrs: Where each begins.
        sizes: Bytes that each occupies.
        sites: Numbers of the lines that asked for them (:func:`oomph.sites.resolve`).
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
    def take(cls, device: int) -> Census:
        """Of this moment."""
        return cls(device, _C.census(device))


@dataclass
class Program:
    """What was seen of the program on the way: plain figures, no tensor.

    Attributes:
        parameter_shapes: Of the parameters on the device, with their bytes an element.
        input_shapes: Of the tensors in :attr:`Category.INPUT`, with their bytes.
        repeated: Names of the user's module classes of which a container has several,
            with how many.
        sequential: Most children of an ``nn.Sequential``.
        optimizers: Names of the optimizers' classes; those of PyTorch that could work
            in one fused kernel, and do not, end with ``*``.
        classes: Names of the user's module classes.
        half: Some tensor that an operator made is of 16 bits an element.
        training: Some module is in training mode; None: there is no module.
        coming_bytes: State that optimizers have begun to make, and have not made yet.
    """

    parameter_shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    input_shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)
    sequential: int = 0
    optimizers: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    half: bool = False
    training: bool | None = None
    coming_bytes: int = 0


@dataclass
class Holders:
    """The category of each block of a census, and the program that they belong to."""

    census: Census
    categories: bytearray
    program: Program


@dataclass
class _Held:
    """What Python's tensors say of one block."""

    first: int  # a tensor among the objects
    known: dict[int, int] = field(default_factory=dict)  # uses that are accounted for
    uses: dict[int, int] = field(default_factory=dict)  # of each tensor, in all
    storage_uses: int = 0
    made: bool = False  # by an operator that is recorded

    def note(self, tensor: int, uses: int) -> None:
        """Python, or a view, has a reference to the tensor."""
        self.known[tensor] = self.known.get(tensor, 0) + 1
        self.uses[tensor] = uses

    @property
    def saved(self) -> bool:
        """Somebody else has one, to the storage or to a tensor: autograd."""
        return self.storage_uses > len(self.known) or any(
            uses > self.known[tensor] for tensor, uses in self.uses.items()
        )


def look(census: Census, alive: Census | None = None, graph: bool = True) -> Holders:
    """Finds out who holds each block of the census.

    Args:
        census: Of now, or of a moment ago.
        alive: Of now, where the first is of a moment ago: what is gone since then was
            a temporary of the operator that failed.
        graph: Whether autograd may hold anything.
    """
    objects = gc.get_objects()
    try:
        return _Look(census, alive, objects).result(graph)
    finally:
        objects.clear()


class _Look:
    def __init__(
        self, census: Census, alive: Census | None, objects: list[Any]
    ) -> None:
        self.census, self.objects = census, objects
        self.place = {addr: i for i, addr in enumerate(census.addrs)}
        self.gone = set(census.addrs).difference(alive.addrs) if alive else set()
        self.categories = bytearray(len(census))
        self.program = Program()
        self.held: dict[int, _Held] = {}

    def result(self, graph: bool) -> Holders:
        import torch

        kinds = set(map(type, self.objects))
        self.parameters = _subclasses(kinds, torch.nn.Parameter)
        self._note_tensors()
        self._note_modules(_subclasses(kinds, torch.nn.Module), torch)
        self._note_optimizers(_subclasses(kinds, torch.optim.Optimizer))
        self._note_rest(graph)
        return Holders(self.census, self.categories, self.program)

    def _mark(self, tensors: list[Any], category: Category) -> None:
        from oomph import _torch

        for row in _torch.holders(tensors, self.census.device):
            i = self.place.get(row[1])
            if i is not None:
                self.categories[i] = category

    def _note_tensors(self) -> None:
        """Gradients and parameters; the rest is noted for later."""
        from oomph import _torch

        parameters = []
        for row in _torch.holders(self.objects, self.census.device):
            index, addr, grad, name, uses, base, base_uses, storage_uses, made = row
            tensor = self.objects[index]
            if type(tensor) in self.parameters:
                parameters.append(self.place.get(addr))
                self.program.parameter_shapes.append(_shape(tensor))
            elif (i := self.place.get(addr)) is not None:
                held = self.held.setdefault(i, _Held(first=index))
                held.note(name, uses)
                if base:
                    held.note(base, base_uses)
                held.storage_uses = storage_uses
                held.made |= made
                if made and _shape(tensor)[1] == 2:
                    self.program.half = True
            if (i := self.place.get(grad)) is not None:
                self.categories[i] = Category.GRADIENT
        for i in filter(lambda i: i is not None, parameters):
            self.categories[i] = Category.PARAMETER  # type: ignore[index]

    def _note_modules(self, kinds: set[type], torch: Any) -> None:
        modules = [m for m in self.objects if type(m) in kinds]
        entries: list[Any] = []
        for module in modules:
            known = module.__dict__
            entries += (known.get("_parameters") or {}).values()
            entries += (known.get("_buffers") or {}).values()
            if not type(module).__module__.startswith("torch."):
                self.program.classes.add(type(module).__qualname__)
            children = list((known.get("_modules") or {}).values())
            if isinstance(module, torch.nn.Sequential):
                self.program.sequential = max(self.program.sequential, len(children))
            self._note_repeated(children)
        if modules:
            self.program.training = any(m.__dict__.get("training") for m in modules)
        self._mark(entries, Category.PARAMETER)

    def _note_repeated(self, children: list[Any]) -> None:
        names = [
            type(child).__qualname__
            for child in children
            if not type(child).__module__.startswith("torch.")
        ]
        for name in set(names):
            if names.count(name) > 1:
                known = self.program.repeated.get(name, 0)
                self.program.repeated[name] = max(known, names.count(name))

    def _note_optimizers(self, kinds: set[type]) -> None:
        for optimizer in (o for o in self.objects if type(o) in kinds):
            known = optimizer.__dict__
            state = list(_tensors(known.get("state") or {}))
            self._mark(state, Category.OPTIMIZER)
            groups = known.get("param_groups") or [{}]
            unfused = "fused" in groups[0] and not groups[0]["fused"]
            self.program.optimizers.add(type(optimizer).__name__ + "*" * unfused)
            self.program.coming_bytes += _coming_state(groups, known.get("state") or {})

    def _note_rest(self, graph: bool) -> None:
        """What is no parameter, no gradient and no state."""
        from oomph import _torch

        workspaces = set(_torch.workspaces())
        of_site: dict[int, bool] = {}
        census = self.census
        for i in range(len(census)):
            if self.categories[i]:
                continue
            held, mark, site = self.held.get(i), census.marks[i], census.sites[i]
            if mark & _C.MARK_POOL:
                category = Category.GRAPH
            elif census.addrs[i] in workspaces:
                category = Category.WORKSPACE
            elif mark & _C.MARK_WAITING or site & _C.SITE_INFERRED:
                category = Category.TEMPORARY
            elif held is not None:
                if site not in of_site:
                    of_site[site] = self._is_in_forward(site, graph)
                category = self._held_by_python(held, of_site[site])
            elif census.addrs[i] in self.gone:
                category = Category.TEMPORARY
            else:
                category = Category.ACTIVATION if graph else Category.UNKNOWN
            self.categories[i] = category

    def _held_by_python(self, held: _Held, in_forward: bool) -> Category:
        saved = held.saved
        if held.made or (in_forward and not saved):
            return Category.ACTIVATION if saved else Category.TEMPORARY
        self.program.input_shapes.append(_shape(self.objects[held.first]))
        return Category.INPUT

    def _is_in_forward(self, site: int, graph: bool) -> bool:
        """Whether the line is in a module's forward.

        Without a graph, any method of its class counts: there, what forward makes looks
        like what was given to it.
        """
        known = sites.resolve(site)
        if known is None:
            return False
        owner, _, name = known.function.partition(".<locals>")[0].rpartition(".")
        return owner in self.program.classes and (not graph or name == "forward")


def _subclasses(kinds: Iterable[type], of: type) -> set[type]:
    return {kind for kind in kinds if of in kind.__mro__}


def _shape(tensor: Any) -> tuple[tuple[int, ...], int]:
    """Shape and bytes an element, of a tensor of PyTorch's own classes."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return (), 0
    return tuple(tensor.shape), tensor.element_size()


def _bytes(tensor: Any) -> int:
    shape, size = _shape(tensor)
    return math.prod(shape) * size


def _coming_state(groups: list[dict[str, Any]], state: dict[Any, Any]) -> int:
    """Bytes of the state of parameters that have none, if others have some."""
    made = parameters = coming = 0
    for parameter in (p for group in groups for p in group.get("params", [])):
        if parameter in state:
            parameters += _bytes(parameter)
            made += sum(_bytes(t) for t in _tensors(state[parameter]))
        else:
            coming += _bytes(parameter)
    return coming * made // parameters if parameters else 0


def _tensors(value: Any, depth: int = 4) -> Iterator[Any]:
    """All that lies in dicts and lists; :func:`_torch.holders` picks the tensors."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and depth > 0:
        for entry in value:
            yield from _tensors(entry, depth - 1)
    else:
        yield value
