"""The calls of modules in a step: what each saves for backward that nobody else does.

That is what running its forward again would free. A storage counts for a call if all
that save it do so within the call and if it is none of the call's inputs, which are
needed to run again; inputs that nobody else would keep until backward count against it.
Calls within calls are each looked at: any of them may be the one.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from oomph.recompute import own_hooks

Key = tuple[int, int]  # the identity of a module, and which of its calls in a turn


def flatten(nest: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a nest of lists, tuples and dicts, and its shape.

    Whatever else is a leaf, also if it is known to PyTorch as a container.
    """
    return pytree.tree_flatten(nest, lambda x: type(x) not in (list, tuple, dict))


Rebuild = Callable[[Sequence[Any]], Any]


def apart(args: Any, kwargs: Any) -> tuple[list[Any], Rebuild]:
    """The arguments of a call, taken apart: what is given twice is there once.

    Modules look whether two arguments are one tensor, as attention does. So what is
    rebuilt has one wherever the call had.

    Returns:
        The leaves, each once, and what makes the arguments and those by name from
        others in their places. It holds none of the leaves.

    Example:
        >>> x, y = torch.ones(1), torch.ones(1)
        >>> once, rebuild = apart((x, x), {"z": y})
        >>> (a, b), named = rebuild([y, x])
        >>> a is b is y, named["z"] is x
        (True, True)
    """
    leaves, shape = flatten((args, kwargs))
    order: dict[int, int] = {}
    places = [order.setdefault(id(leaf), len(order)) for leaf in leaves]
    once = list({id(leaf): leaf for leaf in leaves}.values())

    def rebuild(others: Sequence[Any]) -> Any:
        return pytree.tree_unflatten([others[place] for place in places], shape)

    return once, rebuild


def leaves_of(nest: Any) -> Iterator[Any]:
    """The leaves alone: a tenth of the time, and each call of a module is asked."""
    kind = type(nest)
    if kind is list or kind is tuple:
        for each in nest:
            yield from leaves_of(each)
    elif kind is dict:
        yield from leaves_of([*nest.values()])
    else:
        yield nest


def tensors_in(*nests: Any) -> Iterator[torch.Tensor]:
    """All tensors in nests."""
    return (leaf for leaf in leaves_of(nests) if isinstance(leaf, torch.Tensor))


def devices_of(*nests: Any) -> set[int]:
    """The indices of the CUDA devices of all tensors in nests."""
    return {tensor.device.index for tensor in tensors_in(*nests) if tensor.is_cuda}


def size_of(*nests: Any) -> int:
    """Bytes of all tensors in nests."""
    return sum(tensor.nbytes for tensor in tensors_in(*nests))


def storages_in(*nests: Any) -> frozenset[int]:
    """The identities of the storages of all tensors on a CUDA device."""
    return frozenset(
        tensor.untyped_storage()._cdata
        for tensor in tensors_in(*nests)
        if tensor.is_cuda and tensor.layout is torch.strided
    )


@dataclass
class Call:
    """One call of a module.

    Attributes:
        key: Which.
        module: The module.
        name: Of its class.
        parent: Index of the call around it; -1 if there is none.
        first: Place of what was saved first in it.
        end: Place after what was saved last in it.
        gain_bytes: Bytes that running it again would free.
        inputs: The identities of its inputs' storages.
        hooks: Those of the module's own hooks.
    """

    key: Key
    module: weakref.ref[nn.Module]
    name: str
    parent: int
    first: int
    end: int = 0
    gain_bytes: int = 0
    inputs: frozenset[int] = field(default_factory=frozenset)
    hooks: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Root:
    """An outermost call.

    Attributes:
        module: The module, whose identity another may take once it is gone.
        size_bytes: Of its inputs.
    """

    module: weakref.ref[nn.Module]
    size_bytes: int

    def scaled(self, size: float) -> Root:
        """The same with inputs so many times as large."""
        return Root(self.module, int(size * self.size_bytes))


class Numbers:
    """Gives the calls of a turn their keys."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def key(self, module: nn.Module) -> Key:
        """The key of a call that begins."""
        number = self._seen[id(module)]
        self._seen[id(module)] = number + 1
        return id(module), number

    def restart(self) -> None:
        """Another turn begins."""
        self._seen.clear()


class CallTree:
    """The calls of one turn: a forward, until its backward.

    Args:
        first: The place of the tensor that is saved next.

    Attributes:
        first: Of the turn.
        calls: In the order in which they began.
        saved_bytes: Of storages that were saved, each once.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.calls: list[Call] = []
        self.saved_bytes = 0
        # In the order of time: a call begins, or ends.
        self.marks: list[tuple[int, bool]] = []
        self._open: list[int] = []
        self._numbers = Numbers()
        # By the identity of a storage: bytes, its device, and calls.
        self._saved: dict[int, tuple[int, int, set[int]]] = {}
        # Inputs of calls, by the same: bytes, device, and what says if it is alive.
        self._inputs: dict[int, tuple[int, int, StorageWeakRef]] = {}
        self._let_go: set[int] = set()  # of these, when backward began

    def enter(self, module: nn.Module, args: Any, kwargs: Any, place: int) -> None:
        """A call begins; the next tensor that is saved has this place."""
        parent = self._open[-1] if self._open else -1
        self._open.append(len(self.calls))
        key, name = self._numbers.key(module), type(module).__name__
        call = Call(key, weakref.ref(module), name, parent, place)
        call.inputs = storages_in(args, kwargs)
        call.hooks = own_hooks.others(module)
        for tensor in tensors_in(args, kwargs):
            self._note_input(tensor)
        self.marks.append((len(self.calls), False))
        self.calls.append(call)

    def leave(self, module: nn.Module, place: int) -> None:
        """A call ends, and with it those within that were not seen to end."""
        while self._open:
            i = self._open.pop()
            self.marks.append((i, True))
            call = self.calls[i]
            call.end = place
            if call.module() is module:
                return

    def note(self, tensor: torch.Tensor) -> None:
        """A tensor is saved, no parameter or buffer."""
        storage = tensor.untyped_storage()
        size_bytes, _, callers = self._saved.setdefault(
            storage._cdata, (storage.nbytes(), tensor.device.index, set())
        )
        if not callers:
            self.saved_bytes += size_bytes
        callers.add(self._open[-1] if self._open else -1)

    def _note_input(self, tensor: torch.Tensor) -> None:
        if tensor.is_leaf and tensor.requires_grad:
            return  # the graph keeps it for its gradient, whoever runs again
        if tensor.is_cuda and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._inputs:
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                known = storage.nbytes(), tensor.device.index, reference
                self._inputs[storage._cdata] = known

    def exchange(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """What a call returned, and another in its place: it counts as the same."""
        if old.is_cuda and old.layout is torch.strided:
            identity = old.untyped_storage()._cdata
            if (saved := self._saved.pop(identity, None)) is not None:
                self._saved[new.untyped_storage()._cdata] = saved

    def end_forward(self, held: frozenset[int] = frozenset()) -> None:
        """Backward begins: what nobody has any more, only a call would have kept.

        Args:
            held: Inputs that calls do keep, for they run again.
        """
        self._let_go = {
            identity
            for identity, (_, _, reference) in self._inputs.items()
            if identity not in self._saved and (identity in held or reference.expired())  # type: ignore[no-untyped-call]
        }

    def count(self, device: int) -> None:
        """Counts what each call would free on a device; all have ended."""
        for call in self.calls:
            for identity in call.inputs & self._let_go:
                size_bytes, index, _ = self._inputs[identity]
                call.gain_bytes -= size_bytes if index == device else 0
        for identity, (size_bytes, index, callers) in self._saved.items():
            for i in self._around(callers) if index == device else ():
                if identity not in self.calls[i].inputs:
                    self.calls[i].gain_bytes += size_bytes

    def _around(self, callers: set[int]) -> Iterator[int]:
        """The calls around all of these, the innermost first."""
        common: list[int] | None = None
        for i in callers:
            chain = list(self._chain(i))
            common = chain if common is None else [c for c in common if c in chain]
        yield from common or ()

    def _chain(self, i: int) -> Iterator[int]:
        while i >= 0:
            yield i
            i = self.calls[i].parent
