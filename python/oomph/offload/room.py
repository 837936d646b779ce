"""Makes room on a device by sending away what was saved and stayed.

A plan can be wrong: a batch is longer than any before, a layer is skipped, a model is
evaluated in between. If memory runs out all the same, what backward uses last leaves at
that moment, before anything falls back to the host: kernels use a block on host pages
again and again over the link, while this crosses it once out and once back. What came
back too early goes first where it is used later, as its copy is on the host anyway.
What is much larger than what is missing stays: it would take the link longer.

It costs a weak reference for each tensor that is saved. When memory runs out, what
stays is walked through, what is used last first, until enough has left.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator

import torch

from oomph import _C, _torch
from oomph.base.log import logger
from oomph.memory.residency import is_hosted
from oomph.offload import transfer
from oomph.offload.fetches import Fetches
from oomph.offload.transfer import Link, OffloadedStorage

_PATIENCE_S = 1.0  # for another thread that sends
_LARGER = 2  # times what is missing in a step, that a storage may have which leaves;
_NEXT = (
    2  # one time if it is of so many that are used next, as the way back counts then
)
_LEAST_SHARE = 128  # part of the device that is missing in all, if some is


class Saved:
    """A tensor that was saved: over a storage that stays, or that went to the host.

    Attributes:
        sequence: Its place among all that was saved.
        stream: On which it was saved, where its storage may leave.
        tensor: It; None once its storage has left.
    """

    __slots__ = (
        *("__weakref__", "offloaded", "outline", "sequence", "stream", "tensor"),
        *("version", "what"),
    )

    def __init__(self, tensor: torch.Tensor, sequence: int) -> None:
        self.version = tensor._version
        self.sequence = sequence
        self.outline: object | None = None
        self.offloaded: OffloadedStorage | None = None
        self.stream = 0
        self.tensor: torch.Tensor | None
        if tensor.is_leaf:
            self.tensor = tensor  # as PyTorch does: its data may be exchanged
        else:
            self.tensor = tensor.detach()  # what has a graph would keep itself alive
            self.outline = _torch.outline(tensor)

    def leave(self, offloaded: OffloadedStorage) -> None:
        """Lets go of the tensor, whose storage has been sent."""
        tensor = self.tensor
        assert tensor is not None
        self.what = tensor.type(), tensor.shape
        if self.outline is None:
            self.outline = _torch.outline(tensor)
        with transfer.lock:
            offloaded.add_user()
        self.offloaded = offloaded
        self.tensor = None

    def unpack(self) -> torch.Tensor:
        """Gives the tensor, as backward wants it.

        Raises:
            RuntimeError: It was written to since.
        """
        tensor = self.tensor
        if tensor is None:
            return self._unpack_sent()
        if tensor._version != self.version:
            raise _modified(tensor.type(), tensor.shape, tensor._version, self.version)
        if self.outline is None:
            return tensor
        other = _torch.exchanged(self.outline, tensor)
        return tensor if other is None else other

    def _unpack_sent(self) -> torch.Tensor:
        assert self.outline is not None and self.offloaded is not None
        now = _torch.version_now(self.outline)
        if now != self.version:
            raise _modified(*self.what, now, self.version)
        return self.offloaded.take(self.outline)


def _modified(kind: str, size: torch.Size, now: int, expected: int) -> RuntimeError:
    """The error that PyTorch raises without hooks."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an "
        f"inplace operation: [{kind} {list(size)}] is at version {now}; expected "
        f"version {expected} instead. Hint: enable anomaly detection to find the "
        "operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )


class _Storage:
    """A storage that stays.

    Attributes:
        first: When it was saved first.
        last: When it was saved last, and so will be used first.
    """

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self._saved: list[weakref.ref[Saved]] = []

    def add(self, saved: Saved) -> None:
        """It was saved once more."""
        self._saved.append(weakref.ref(saved))
        self.last = saved.sequence

    def alive(self) -> list[Saved]:
        """The tensors over it that are still to be used."""
        return [saved for ref in self._saved if (saved := ref()) is not None]


class Staying:
    """What was saved and stays on a device.

    Args:
        link: The device's.
        fetches: What is away from it, and comes back.
        note_sent: Called with what has been sent, under ``transfer.lock``.
    """

    def __init__(
        self,
        link: Link,
        fetches: Fetches,
        note_sent: Callable[[OffloadedStorage], None],
    ) -> None:
        self._link, self._fetches, self._note_sent = link, fetches, note_sent
        self._storages: dict[int, _Storage] = {}  # by identity, the last saved last
        self._missing_bytes = 0  # in this step, as far as it has come

    def add(self, identity: int, saved: Saved) -> None:
        """A storage stays that was saved; the caller holds ``transfer.lock``."""
        known = self._storages.pop(identity, None)
        if known is None or not known.alive():
            known = _Storage(saved.sequence)
        known.add(saved)
        self._storages[identity] = known

    def forget_used(self) -> None:
        """A step has ended; the caller holds ``transfer.lock``."""
        self._storages = {i: s for i, s in self._storages.items() if s.alive()}
        self._missing_bytes = 0

    def make_room(self, size_bytes: int, capacity: int) -> int:
        """Sends what is used last, until so many bytes come free.

        Args:
            size_bytes: So many.
            capacity: Bytes that blocks can have on the device.

        Returns:
            How many do.
        """
        self._missing_bytes += size_bytes
        most = _LARGER * max(self._missing_bytes, capacity // _LEAST_SHARE)
        if not self._link.sending.acquire(timeout=_PATIENCE_S):
            return 0
        freed_bytes = 0
        try:
            for free in self._used_last(most):
                if freed_bytes >= size_bytes:
                    break
                freed_bytes += free()
        except (MemoryError, _C.DriverError) as error:
            logger.debug("no more leaves: %s", error)
        finally:
            self._link.sending.release()
        return freed_bytes

    def _used_last(self, most: int) -> Iterator[Callable[[], int]]:
        """What frees memory, from what is used last to what is used next.

        Args:
            most: Bytes that it may have.
        """
        with transfer.lock:
            early = sorted(self._fetches.early(), key=lambda o: o.sequence)
            staying = list(self._storages.values())
        for i, storage in enumerate(staying):
            while early and early[0].sequence < storage.last:
                yield functools.partial(self._let_go, early.pop(0))
            at_most = most if i < len(staying) - _NEXT else most // _LARGER
            yield functools.partial(self._send, storage, at_most)
        for offloaded in early:
            yield functools.partial(self._let_go, offloaded)

    def _let_go(self, offloaded: OffloadedStorage) -> int:
        freed_bytes = offloaded.let_go()
        if freed_bytes > 0:
            with transfer.lock:
                self._fetches.add(offloaded)
        return freed_bytes

    def _send(self, storage: _Storage, most: int) -> int:
        saved = storage.alive()
        tensors = [one.tensor for one in saved]
        found = [tensor for tensor in tensors if tensor is not None]
        del tensors
        if len(found) < len(saved) or not found or not _torch.are_alone(found):
            return 0
        bytes_storage = found[0].untyped_storage()
        if bytes_storage.nbytes() > most or is_hosted(bytes_storage.data_ptr()):
            return 0
        del bytes_storage
        stream = _stream_of(self._link.device, saved[0].stream)
        offloaded = OffloadedStorage(self._link, found[0], storage.first, stream)
        with transfer.lock:
            self._note_sent(offloaded)
        for one in saved:
            one.leave(offloaded)
        return offloaded.bytes


def _stream_of(device: int, handle: int) -> torch.cuda.Stream:
    if handle == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)  # type: ignore[no-untyped-call]
