"""Works on tensors of the host in buffers on the device, while others are copied.

It is a pipeline: two pieces are on their way in while one is worked on and those before
are on their way out, in four buffers that take turns. So a step takes as long as the
slower of work and link, not as long as both. More buffers would take memory and hide no
more. Only what may have been written to is copied back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from oomph import _C
from oomph.base.attempts import attempt
from oomph.base.log import logger
from oomph.memory.residency import address_of, is_hosted
from oomph.offload.transfer import Link, copy

_AHEAD = 2  # pieces on their way in while one is worked on
_BUFFERS = 2 * _AHEAD  # beside them those on their way out
# The list of gradients. SGD with Nesterov's momentum adds to them, others only read
# them. Their version shows it; that of others does not, as _foreach_lerp_ counts none.
_GRADIENTS = 1
_STATE = 2  # the first list of what nothing but the optimizer uses
_ALIGNMENT = 512

Tensors = list[torch.Tensor]
Work = Callable[[list[Tensors]], None]


class _Buffer:
    """Device memory for the tensors of a piece, then for another's."""

    def __init__(self, device: int, size_bytes: int) -> None:
        self.memory = torch.empty(
            size_bytes, dtype=torch.uint8, device=f"cuda:{device}"
        )
        self.copied: torch.cuda.Event | None = None  # its last piece, to the host

    def carve(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape, at an offset, with a version of its own."""
        place = torch.empty(0, dtype=like.dtype, device=like.device)
        start = offset // like.element_size()
        storage = self.memory.untyped_storage()
        return place.set_(storage, start, like.size(), like.stride())


@dataclass
class _Move:
    """A tensor on the host and its place on the device."""

    home: torch.Tensor
    place: torch.Tensor
    version: int | None  # of the place; None: it is to be taken for written to

    def is_written(self) -> bool:
        """Whether the work may have changed what lies in the place."""
        return self.version is None or self.place._version != self.version


@dataclass
class _Staged:
    """A piece on its way to the device."""

    lists: list[Tensors]  # with the places
    buffer: _Buffer
    moves: list[_Move]
    ready: torch.cuda.Event


# What lies on the device, or has no room there, is worked on at its home.
_Piece = _Staged | list[Tensors]


class Pipeline:
    """Copies pieces of tensors in and out around the work on each.

    Args:
        link: The streams for copies.
        lists: All tensors; the pieces are views of them, or of nothing on the host.
        writes_all: Whether the work may write to gradients without their versions
            showing it.
    """

    def __init__(self, link: Link, lists: list[Tensors], writes_all: bool) -> None:
        self._writes_all = writes_all
        self._link = link
        self._stream = torch.cuda.current_stream(link.device)
        self._hosted = [_hosted(entries) for entries in lists]
        self._at_home: set[int] = set()  # of these, what was worked on there
        self._buffers: deque[_Buffer] = deque()  # those in use, the longest first

    def run(self, pieces: Iterator[list[Tensors]], work: Work) -> None:
        """Works on all pieces; afterwards the current stream may use them."""
        if not any(self._hosted):
            for piece in pieces:
                work(piece)
            return
        waiting: deque[_Piece] = deque()
        self._link.back.wait_stream(self._stream)
        try:
            for piece in pieces:
                waiting.append(self._fetch(piece))
                if len(waiting) > _AHEAD:
                    self._finish(waiting.popleft(), work)
            while waiting:
                self._finish(waiting.popleft(), work)
        finally:
            self._wait_for_copies()
        state = {address for entries in self._hosted[_STATE:] for address in entries}
        _C.mark_copied(list(state - self._at_home))

    def _wait_for_copies(self) -> None:
        """Has the stream wait, or this thread if that cannot be queued."""
        try:
            self._stream.wait_stream(self._link.back)
            self._stream.wait_stream(self._link.out)
        except RuntimeError:
            self._link.back.synchronize()
            self._link.out.synchronize()
            raise

    def _fetch(self, piece: list[Tensors]) -> _Piece:
        hosted = [
            (i, j, tensor)
            for i, entries in enumerate(piece)
            for j, tensor in enumerate(entries)
            if address_of(tensor) in self._hosted[i]
        ]
        homes = [entry for entry in hosted if is_dense(entry[-1])]
        self._at_home |= {address_of(t) for *_, t in hosted if not is_dense(t)}
        if not homes:
            return piece
        sizes = [_round_up(tensor.nbytes) for *_, tensor in homes]
        try:
            with attempt():
                buffer = self._take_buffer(sum(sizes))
        except torch.OutOfMemoryError as error:
            logger.debug("an optimizer works on the host: %s", error)
            self._at_home |= {address_of(home) for *_, home in homes}
            return piece
        lists, moves, offset = [list(entries) for entries in piece], [], 0
        for (i, j, home), size_bytes in zip(homes, sizes, strict=True):
            place = buffer.carve(offset, home)
            self._copy(place, home, self._link.back)
            is_counted = i == _GRADIENTS and not place.is_inference()
            is_counted = is_counted and not self._writes_all
            moves.append(_Move(home, place, place._version if is_counted else None))
            lists[i][j] = place
            offset += size_bytes
        return _Staged(lists, buffer, moves, self._link.back.record_event())

    def _take_buffer(self, size_bytes: int) -> _Buffer:
        back = self._link.back
        if len(self._buffers) >= _BUFFERS:
            buffer = self._buffers.popleft()
            if buffer.copied is not None:
                back.wait_event(buffer.copied)
            if buffer.memory.numel() >= size_bytes:
                self._buffers.append(buffer)
                return buffer
            buffer.memory.record_stream(self._link.out)
            buffer.memory.record_stream(back)
        buffer = _Buffer(self._link.device, size_bytes)
        back.wait_stream(self._stream)  # which may have used this memory before
        self._buffers.append(buffer)
        return buffer

    def _finish(self, staged: _Piece, work: Work) -> None:
        if isinstance(staged, list):
            work(staged)
            return
        out = self._link.out
        self._stream.wait_event(staged.ready)
        work(staged.lists)
        out.wait_stream(self._stream)
        for move in staged.moves:
            if move.is_written():
                self._copy(move.home, move.place, out)
                if not move.home.is_inference():
                    torch.autograd.graph.increment_version(move.home)
        staged.buffer.copied = out.record_event()

    def _copy(
        self, to: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream
    ) -> None:
        size_bytes = to.nbytes
        if size_bytes > 0:
            copy(
                self._link.device,
                to.data_ptr(),
                source.data_ptr(),
                size_bytes,
                stream.cuda_stream,
            )
        is_out = stream == self._link.out
        self._link.note_copied(is_out * size_bytes, (not is_out) * size_bytes)


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether its storage has memory of oomph's on the host."""
    address = address_of(tensor)
    return address != 0 and is_hosted(address)


def _hosted(tensors: Tensors) -> set[int]:
    """The addresses of the storages on the host."""
    return {address_of(tensor) for tensor in tensors if is_on_host(tensor)}


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one stretch of memory, each once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
