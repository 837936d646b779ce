"""Runs operators on tensors without memory, and counts what they would take.

It is a mode above PyTorch's ``FakeTensorMode``: that knows the shape of each operator's
result, the ledger counts the storage, and rules add what the kernel takes beside. So a
new model needs no rules of its own. Each operator takes longer in Python than a launch
would, but needs neither memory nor a GPU.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from oomph.replay.ledger import Ledger, Piece
from oomph.replay.operators import besides, contents
from oomph.replay.operators.counts import Counts
from oomph.replay.operators.quick import Quick, tensors_among
from oomph.replay.operators.recurrent import CELLS
from oomph.replay.position import Position
from oomph.replay.regions import Regions

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_STAND_INS = CELLS | besides.LOSSES
_WITHOUT_EFFECT = {_aten._pin_memory.default, _aten.record_stream.default}
_WRITES = {_aten.copy_.default, _aten.index_copy_.default, _aten.scatter_.src}
_JOINS = frozenset([_aten.cat.default, _aten.index_put_.default, *_WRITES])
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default}
_PRODUCTS |= {_aten.baddbmm.default, _aten.addmv.default, _aten.mv.default}
_TAKES = {_aten.index.Tensor, _aten.index_select.default, _aten.gather.default}
_ADDS = frozenset(
    [
        *(_aten.index_put.default, _aten.index_put_.default, _aten.index_add.default),
        *(_aten.index_add_.default, _aten.scatter_add_.default, _aten.scatter_.src),
        *(_aten.scatter_add.default, _aten.scatter_reduce.two),
        _aten.scatter_reduce_.two,
    ]
)


class Cached(NamedTuple):
    """What a call keeps for the next ones, such as the keys of a layer.

    Attributes:
        old: What it was.
        new: What it is.
        length: Along the dimension in which more comes, such as that of tokens.
        call: Number of the call that records nothing, and joined or wrote to it.
    """

    old: Piece
    new: Piece
    length: int
    call: int


@dataclass
class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered, above a ``FakeTensorMode``.

    What is on the CPU, small and known is really computed, so that lengths, masks and
    options keep their values.

    Attributes:
        fakes: Makes tensors without memory of others.
        device: Index of the device that counts.
        card: What it is, as far as operators ask.
        counts: Of rows that masks choose.
        position: Where the step ended that runs again.
        answer: What a condition gives that nobody knows.
        ledger: Of the storages that there are.
        guessed: Whether a value was asked for that nobody knows.
        multiplies: Whether matrices were multiplied, which cuBLAS does.
        multiplied: Identities of their pieces.
        taken: Of each tensor of which forward took rows by index, how many it had, and
            how many were taken.
        added: The same of those that rows were written or added to by index.
        rows: Of the tensors that were there and were used, how many each had.
        chosen_from: Shapes of which the last dimension was the choice of a loss.
        brought: First sizes of what forward makes of nothing on the device, the first
            first.
        collected: First sizes of what was joined of the results of several batches.
        cut: As ``Change.batch`` has it.
        times: Lengths of sequences whose time comes before the batch.
        depth: Of the calls of modules.
        call: Number of the outermost one.
        caches: What calls keep for later ones.
        as_they_came: Addresses of what is empty, and becomes the first that is joined.
    """

    fakes: FakeTensorMode
    device: int
    card: besides.Card
    counts: Counts
    position: Position
    answer: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    guessed: bool = False
    multiplies: bool = False
    multiplied: set[int] = field(default_factory=set)
    taken: set[tuple[int, int]] = field(default_factory=set)
    added: set[tuple[int, int]] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    chosen_from: set[tuple[int, ...]] = field(default_factory=set)
    brought: list[int] = field(default_factory=list)
    collected: set[int] = field(default_factory=set)
    cut: tuple[int, int, int] | None = None
    times: set[int] = field(default_factory=set)
    depth: int = 0
    call: int = 0
    caches: list[Cached] = field(default_factory=list)
    as_they_came: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Makes it a mode."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._quick = Quick(self.fakes)
        self.regions = Regions(self.ledger)
        self._joined: list[Cached] = []  # of the call that runs
        self._brought_at: list[int] = []  # indices of events
        self._again: list[tuple[Piece, int, int]] = []  # what had run joined it, too
        # What was made of real tensors, while these are there, by their identities.
        self._fake_of: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """It is not compiled: PyTorch needs no guard around each operator."""
        return False

    def __hash__(self) -> int:
        """Modes are compared by identity."""
        return id(self)

    def expect(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """Takes a tensor's storage as one that was there before."""
        if self.ledger.expect(tensor, real):
            self.rows.update(tensor.shape[:1])

    def enter_call(self) -> None:
        """A module's call begins."""
        self.call += self.depth == 0
        self.depth += 1

    def leave_call(self) -> None:
        """It ends; what was joined within the outermost one and stays is a cache."""
        self.depth = max(0, self.depth - 1)
        if self.depth == 0:
            self.caches += [c for c in self._joined if c.new.end is None]
            self._joined.clear()
            self._again = [found for found in self._again if found[0].end is not None]

    @property
    def rejoined(self) -> list[tuple[int, tuple[int, int]]]:
        """Tensors to which the step had joined the same before it ended.

        Such are replaced by longer ones within a call, as they replaced shorter ones.

        Returns:
            Addresses; along which dimension, and how long they were before.
        """
        replaced = (found for found in self._again if found[0].end is not None)
        return [(piece.addr, (dim, length)) for piece, dim, length in replaced]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator."""
        if func is _DEVICE:  # autograd asks it of each tensor: most dispatches are this
            return args[0].device
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            if (number := contents.item_of(args[0])) is not None:
                return number
            if not _is_known(args[0]):
                return self.guess(args[0])
        if func in _WITHOUT_EFFECT:
            return args[0] if func is _aten._pin_memory.default else None
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        given = tensors_among((*args, *kwargs.values()))
        as_given = args, kwargs, given
        if not all(isinstance(tensor, FakeTensor) for tensor in given):
            if _is_small_and_real(func, given, kwargs):
                with _disable_current_modes():
                    return func(*args, **kwargs)
            args, kwargs = tree_map_only(torch.Tensor, self._as_fake, (args, kwargs))
        if func in _PRODUCTS:
            self.multiplies = True
            self.multiplied.update(id(self.ledger.piece_of(tensor)) for tensor in given)
        joins = func in _JOINS
        if func is _aten.cat.default and self._is_outside():
            args = self._collected(*args)
        if func is _aten.cat.default and not torch.is_grad_enabled():
            func, args = self._joinable(*args)
        if self.ledger.runs == "forward" and (func in _TAKES or func in _ADDS):
            self._note_rows(self.taken if func in _TAKES else self.added, args)
        if self.ledger.phase == "backward" and not torch.is_grad_enabled():
            func = besides.IN_PLACE.get(func, func)
        result = self.counts.result(func, args)
        if result is None:
            stand_in = _STAND_INS.get(func)
            if stand_in is not None:
                result = stand_in(*args, **kwargs)
            else:
                result = self._quick.run(func, args, kwargs)
        self.counts.masks.note(func, args, result)
        if func is _aten._log_softmax.default:
            self.chosen_from.add(tuple(result.shape))
        made = tensors_among(result if isinstance(result, tuple | list) else (result,))
        if not given and made and _are_small(made):
            with _disable_current_modes():
                return func(*args, **kwargs)
        contents.note(func, *as_given, result)
        if self.cut is not None and self._brings_batch(func, given, result):
            _, wanted, dim = self.cut
            self._brought_at.append(len(self.ledger.events))
            part = result.narrow(dim, 0, wanted).clone()
            contents.narrow(part, result, dim, wanted)
            return part
        if not any(tensor.is_cuda for tensor in given):
            self._note_brought(result)
        call = self.call if self.depth else 0
        for tensor in made:
            is_counted = isinstance(tensor, FakeTensor) and self._is_here(tensor)
            if is_counted and tensor.layout is torch.strided:
                self.ledger.add(tensor, call)
        if self.ledger.runs == "forward":
            self.regions.note(func, args, kwargs, given, made)
        if given and self._is_here(given[0]):
            besides_bytes = besides.bytes_of(func, args, kwargs, result, self.card)
            if besides_bytes:
                self.ledger.change(besides_bytes)
                self.ledger.change(-besides_bytes)
        if joins and self.depth and not torch.is_grad_enabled():
            self._note_joined(func, given, result)
        return result

    def guess(self, tensor: torch.Tensor) -> Any:
        """A value of a tensor of which nobody knows any."""
        self.guessed = True
        return _plausible(tensor, self.answer)

    def _joinable(self, parts: list[torch.Tensor], dim: int = 0) -> tuple[Any, Any]:
        """What joins tensors that are not empty; notes what is joined once more."""
        first, *others = parts
        count = sum(part.shape[dim] for part in others if part.ndim == first.ndim > 0)
        piece = self.ledger.piece_of(first)
        if piece is not None and piece.phase == "before":
            if first.numel() == 0 and piece.addr in self.as_they_came:
                return _aten.alias.default, others[:1]
            if 0 < count <= first.shape[dim] and self.position.is_past():
                self._again.append((piece, dim, first.shape[dim] - count))
        return _aten.cat.default, ([p for p in parts if p.numel()] or parts, dim)

    def _note_joined(self, func: Any, given: list[torch.Tensor], result: Any) -> None:
        """Of a tensor that an earlier call left, and more of the same."""
        old = given[0]
        piece, new = self.ledger.piece_of(old), self.ledger.piece_of(result)
        if piece is None or new is None or piece.call == self.call or not old.ndim:
            return
        if func in (_aten.cat.default, _aten.alias.default):
            grown = [i for i, n in enumerate(old.shape) if n != result.shape[i]]
            is_most = old.numel() == 0 or old.numel() > result.numel() // 2
            is_more, shape = len(grown) == 1 and is_most, result.shape
        else:
            part, shape = given[-1].shape, piece.shape
            grown = [i for i, n in enumerate(shape) if part[i : i + 1] != (n,)]
            is_more = len(grown) == 1 and given[-1].ndim == len(shape)
        if is_more:
            self._joined.append(Cached(piece, new, shape[grown[0]], self.call))

    def _is_outside(self) -> bool:
        """Whether forward runs, outside all calls of modules."""
        return not self.depth and self.ledger.runs == "forward"

    def _note_brought(self, result: Any) -> None:
        if not self._is_outside():
            return
        if isinstance(result, FakeTensor) and result.is_cuda and result.ndim:
            self.brought.append(result.shape[0])
            self._brought_at.append(len(self.ledger.events))

    def _collected(self, parts: list[torch.Tensor], dim: int = 0) -> tuple[Any, int]:
        """What joins the results of several batches: of smaller ones there are more."""
        pieces = [self.ledger.piece_of(part) for part in parts]
        begins = [piece.begin for piece in pieces if piece is not None]
        if dim or not begins or not parts[0].ndim:
            return parts, dim
        if any(min(begins) < at < max(begins) for at in self._brought_at):
            self.collected.add(sum(part.shape[0] for part in parts))
            size, wanted, where = self.cut or (1, 1, 0)
            if where == 0 and parts[0].shape[0] % wanted == 0:
                parts = list(parts) * (size // wanted)
        return parts, dim

    def _brings_batch(self, func: Any, given: list[torch.Tensor], result: Any) -> bool:
        """Whether an operator gives the first tensor of the device with all rows.

        Within calls of modules none does. A part of what was there may have them along
        the second dimension as the whole does.
        """
        if not self._is_outside() or not isinstance(result, FakeTensor):
            return False
        assert self.cut is not None
        size, wanted, dim = self.cut
        if func is _aten.slice.Tensor:
            given = [t for t in given if id(t.untyped_storage()) in self.ledger.alive]
        return _has_batch(result, size, dim) and not any(
            _has_batch(tensor, n, dim) for tensor in given for n in (size, wanted)
        )

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        key = id(tensor)
        pair = self._fake_of.get(key)
        if pair is None:
            gone = weakref.ref(tensor, lambda _: self._fake_of.pop(key, None))
            pair = self._fake_of[key] = gone, self.fakes.from_tensor(tensor)
        return pair[1]

    def _note_rows(self, noted: set[tuple[int, int]], args: Any) -> None:
        first, where = args[0], args[1]
        if isinstance(where, list | tuple):  # of index and index_put
            index = where[0] if where else None
        else:
            index = args[2] if where in (0, -first.ndim) else None
        if isinstance(index, torch.Tensor) and first.ndim:
            count = index.shape[0] if index.ndim else 1
            noted.add((first.shape[0], count))

    def _is_here(self, tensor: torch.Tensor) -> bool:
        where = tensor.device
        return where.type == "cuda" and (where.index or 0) == self.device


def _plausible(tensor: torch.Tensor, answer: bool) -> bool | int | float:
    if tensor.dtype is torch.bool:
        return answer
    return 0.0 if tensor.is_floating_point() else 1


def _is_known(value: Any) -> bool:
    """Whether its elements can be read."""
    if isinstance(value, FakeTensor):
        return value.constant is not None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _is_small_and_real(func: Any, given: list[torch.Tensor], kwargs: Any) -> bool:
    """Whether an operator is one on small tensors of the CPU, whose bytes are there."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    return func.namespace == "aten" and all(
        not isinstance(t, FakeTensor)
        and t.device.type == "cpu"
        and t.layout is torch.strided
        and t.numel() <= contents.REAL_MAX
        and not (func._schema.is_mutable and _is_shared(t))
        for t in given
    )


def _is_shared(tensor: torch.Tensor) -> bool:
    """Whether other processes see what is written to it."""
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _are_small(made: list[torch.Tensor]) -> bool:
    """Whether they are of the CPU, and so small that they can be made."""
    return all(t.device.type == "cpu" and t.numel() <= contents.REAL_MAX for t in made)


def _has_batch(tensor: torch.Tensor, size: int, dim: int) -> bool:
    return tensor.is_cuda and tensor.ndim > dim and tensor.shape[dim] == size
