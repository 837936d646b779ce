"""The storages that a step has while it runs again, and the bytes that they take.

A weak reference to each storage tells when it goes, whoever let go of it. The bytes in
use after each such event give the peak; and as each piece has its begin and its end,
they also give the peak had some pieces been smaller, in one pass over pieces and
events. So that needs no other run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from oomph.replay.operators.counts import ROUND_BYTES


@dataclass
class Piece:
    """One storage that a step made, or found.

    Attributes:
        size_bytes: That its block takes.
        shape: Of the tensor that it was made for.
        begin: Index of the event that it came with.
        end: Index of the event that it went with; None: it is there still.
        phase: What ran as it was made, as ``Ledger.phase`` has it; "before": it was
            there.
        call: Number of the call of a model that made it; 0: none did.
        addr: Of what was there.
        dtype: Of the tensor that it was made for.
    """

    size_bytes: int
    shape: tuple[int, ...]
    begin: int
    end: int | None = None
    phase: str = "forward"
    call: int = 0
    addr: int = 0
    dtype: torch.dtype = torch.float32


@dataclass
class Ledger:
    """Counts the bytes of storages as they come and go; each change is an event.

    Attributes:
        now_bytes: What is in use beyond what was there as it began.
        peak_bytes: The most that it was since :meth:`mark`.
        peak_phase: The phase of the peak.
        phase: "forward", "backward" or "optimizer".
        pieces: All storages that were made, in the order in which they came.
        before: Those that were there, by address.
        alive: Those of tensors without memory that are there now, by their identity.
        events: What was in use after each event.
    """

    now_bytes: int = 0
    peak_bytes: int = 0
    peak_phase: str = "forward"
    phase: str = "forward"
    pieces: list[Piece] = field(default_factory=list)
    before: dict[int, Piece] = field(default_factory=dict)
    alive: dict[int, Piece] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    _known: dict[int, weakref.ref[Any]] = field(default_factory=dict)

    def mark(self) -> None:
        """Begins a new peak."""
        self.peak_bytes = self.now_bytes

    @property
    def runs(self) -> str:
        """The phase; a closure that an optimizer calls records: it is no part of it."""
        is_closure = self.phase == "optimizer" and torch.is_grad_enabled()
        return "forward" if is_closure else self.phase

    def change(self, size_bytes: int) -> int:
        """So many bytes more, or fewer; gives the event's index."""
        self.now_bytes += size_bytes
        if self.now_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_phase = self.now_bytes, self.runs
        self.events.append(self.now_bytes)
        return len(self.events) - 1

    def add(self, tensor: torch.Tensor, call: int) -> None:
        """Counts the storage of a tensor without memory, unless it is known.

        Args:
            tensor: Whose layout is strided.
            call: Number of the call of a model that made it; 0: none did.
        """
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        size = -(-storage.nbytes() // ROUND_BYTES) * ROUND_BYTES
        begin, shape = self.change(size), tuple(tensor.shape)
        piece = Piece(size, shape, begin, None, self.runs, call, 0, tensor.dtype)
        self.pieces.append(piece)
        self.alive[key] = piece

        def gone() -> None:
            self._end(piece)
            self.alive.pop(key, None)

        self._watch(storage, gone)

    def watch_real(self, tensor: torch.Tensor, is_gone: bool) -> None:
        """Counts what a storage of before gives back when it goes.

        Args:
            tensor: That has it.
            is_gone: It did not count as there, and is held after all.
        """
        storage = tensor.untyped_storage()
        addr, size = storage.data_ptr(), storage.nbytes()
        if not addr or addr in self.before:
            return
        begin = self.change(size) if is_gone else 0
        shape, dtype = tuple(tensor.shape), tensor.dtype
        piece = Piece(size, shape, begin, None, "before", 0, addr, dtype)
        self.before[addr] = piece
        self._watch(storage, lambda: self._end(piece))

    def expect(self, tensor: torch.Tensor, real: torch.Tensor) -> bool:
        """Takes a tensor's storage as one that was there before.

        Returns:
            Whether that is on the device, and was not known to be this tensor's.
        """
        if tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return False
        piece = self.piece_of(real)
        if piece is not None:
            self.alive[key] = piece
        self._watch(storage, lambda: self.alive.pop(key, None))
        return piece is not None

    def _end(self, piece: Piece) -> None:
        piece.end = self.change(-piece.size_bytes)

    def _watch(self, storage: Any, gone: Callable[[], object]) -> None:
        key = id(storage)

        def forget(_: Any) -> None:
            self._known.pop(key, None)
            gone()

        self._known[key] = weakref.ref(storage, forget)

    def piece_of(self, tensor: torch.Tensor) -> Piece | None:
        """The piece of a tensor's storage; None: it is elsewhere."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        if isinstance(tensor, FakeTensor):
            return self.alive.get(id(storage))
        return self.before.get(storage.data_ptr())

    def peak_without(
        self, share: Callable[[Piece], float], since: dict[int, int] | None = None
    ) -> int:
        """The peak of all, had each piece been a share smaller.

        Args:
            share: Of a piece, from 0 (stays as it is) to 1 (was never there).
            since: The event from which on it was, by identity; else from its begin.
        """
        known = since or {}
        deltas = [0] * (len(self.events) + 1)
        for piece in (*self.before.values(), *self.pieces):
            if part := share(piece):
                saved = int(piece.size_bytes * part)
                deltas[known.get(id(piece), piece.begin)] -= saved
                if piece.end is not None:
                    deltas[piece.end] += saved
        return max(map(add, self.events, accumulate(deltas)), default=0)
