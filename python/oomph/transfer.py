"""Storages on their way between the device and the host.

A storage that leaves is copied to a buffer on the host (``oomph_buffer``) on one side
stream, and comes back to a new place on another, so that both directions of the link
work at once. Nothing here waits: streams wait for each other on the device, and memory
that a copy still reads is reused only when the copy has finished.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph import _C, _torch, cost


class Link:
    """The two side streams of a device, and what went over them.

    Args:
        device: Index of a CUDA device.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)
        self.out_bytes = 0  # copied to the host so far
        self.back_bytes = 0  # copied to the device so far
        self.away_bytes = 0  # now on the host alone
        self.restored_bytes = 0  # now back, and still to be used
        self.waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.waited_ms = 0.0  # that the device waited for copies back, as measured

    def note_wait(self, stream: torch.cuda.Stream, ready: torch.cuda.Event) -> None:
        """Has the stream wait for a copy, and its waiting measured."""
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record(stream)
        stream.wait_event(ready)
        after.record(stream)
        self.waits.append((before, after))

    def collect_waits(self) -> None:
        """Adds up the waits that have ended."""
        while self.waits and cost.has_passed(self.waits[0][1]):
            before, after = self.waits.pop(0)
            self.waited_ms += before.elapsed_time(after)


def copy(device: int, to: int, source: int, size_bytes: int, stream: int) -> None:
    """Queues a copy, as ``_C.copy``; any failure is a driver's, out of memory too.

    Raises:
        oomph._C.DriverError: The driver refused.
    """
    try:
        _C.copy(device, to, source, size_bytes, stream)
    except (MemoryError, _C.DriverError) as error:
        raise _C.DriverError(f"oomph: {error}") from error


class Slot:
    """One storage that was sent to the host.

    It owns the copy there, and the restored storage while somebody is still to use it.

    Args:
        link: The link of its device.
        storage: The storage, alive and on the device. The caller lets go of it.
        version: What tells its version (``oomph._torch.version_of``).
        sequence: Its place among all that was saved.

    Raises:
        MemoryError: The host has no room, within its limit.
        oomph._C.DriverError: The copy could not be queued.
    """

    def __init__(
        self,
        link: Link,
        storage: torch.UntypedStorage,
        version: object,
        sequence: int,
    ) -> None:
        self.link = link
        self.bytes = storage.nbytes()
        self.version = version
        self.copied_version = _torch.version_now(version)
        self.sequence = sequence
        self.users = 0  # packed tensors that have not been unpacked yet
        self.is_away = False
        self._addr = 0  # of the copy on the host
        self._lock = threading.Lock()
        self._base: torch.Tensor | None = None
        self._stayed: torch.Tensor | None = None  # the original, in place of the copy
        self._last: weakref.ref[torch.Tensor] | None = None
        self._ready: torch.cuda.Event | None = None  # not yet waited for
        self._stream: torch.cuda.Stream | None = None  # that owns the base
        self._addr = _C.buffer(
            link.device, self.bytes, link.out.cuda_stream, link.back.cuda_stream
        )
        try:
            link.out.wait_stream(torch.cuda.current_stream(link.device))
            copy(
                link.device,
                self._addr,
                storage.data_ptr(),
                self.bytes,
                link.out.cuda_stream,
            )
        except BaseException:
            self._free_copy()
            raise
        self._original = StorageWeakRef(storage)
        link.out_bytes += self.bytes
        link.away_bytes += self.bytes
        self.is_away = True

    def has_left(self) -> bool:
        """Whether nobody holds the storage that was sent away any more."""
        return bool(self._original.expired())

    def stay(self) -> None:
        """Keeps a storage that has not left, as somebody holds it, and not its copy."""
        with self._lock:
            self._stayed = self._find()
            if self._stayed is None:  # it has left just now
                return
            self._not_away()
            self._free_copy()

    def _not_away(self) -> None:
        if self.is_away:
            self.link.away_bytes -= self.bytes
        self.is_away = False

    def fetch(self) -> None:
        """Queues the copy back, to a new block of the current stream.

        Raises:
            torch.OutOfMemoryError: There is no room for it. The copy on the host stays.
        """
        with self._lock:
            if self._base is None and self.has_left():
                self._fetch()

    def _fetch(self) -> torch.Tensor:
        device = self.link.device
        stream = torch.cuda.current_stream(device)
        base = torch.empty(self.bytes, dtype=torch.uint8, device=f"cuda:{device}")
        back = self.link.back
        back.wait_stream(stream)  # what used this memory before
        back.wait_stream(self.link.out)
        copy(device, base.data_ptr(), self._addr, self.bytes, back.cuda_stream)
        try:
            self._ready = back.record_event()
        except BaseException:
            base.record_stream(back)  # which still writes to it
            raise
        self._stream = stream
        self._base = base
        self.link.back_bytes += self.bytes
        self.link.restored_bytes += self.bytes
        self._not_away()
        return base

    def _find(self) -> torch.Tensor | None:
        """The bytes, if they are on the device."""
        if self._stayed is not None:
            return self._stayed
        if self._base is not None:
            return self._base
        base = self._last() if self._last is not None else None
        if base is not None:
            return base
        storage = torch.UntypedStorage._new_with_weak_ptr(self._original.cdata)
        if storage is None:
            return None
        bytes_ = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return bytes_.set_(storage, 0, (self.bytes,), (1,))

    def take(self) -> torch.Tensor:
        """The restored bytes, for the current stream, for one of the users.

        Raises:
            torch.OutOfMemoryError: As :meth:`fetch`.
        """
        stream = torch.cuda.current_stream(self.link.device)
        with self._lock:
            base = self._find()
            if base is None:
                base = self._fetch()
            if self._ready is not None:
                self.link.note_wait(stream, self._ready)
                self._ready = None
            if self._stream is not None and stream != self._stream:
                stream.wait_stream(self._stream)
                base.record_stream(stream)
            self.users = max(self.users - 1, 0)
            if self.users == 0:  # who unpacks again fetches again, if need be
                self._last = weakref.ref(base)
                self._drop_base()
        return base

    def _drop_base(self) -> None:
        if self._base is not None:
            self.link.restored_bytes -= self.bytes
        self._base = None

    def close(self) -> None:
        """Lets go of the copy and of what was restored and never used."""
        try:
            self._wait_before_reuse()
        finally:
            self._drop_base()
            self._not_away()
            self._free_copy()

    def _wait_before_reuse(self) -> None:
        """What was restored and not used is freed while it may still be written to."""
        ready, self._ready = self._ready, None
        if ready is None or self._stream is None or self._base is None:
            return
        try:
            self._stream.wait_event(ready)
        except RuntimeError:
            self._base.record_stream(self.link.back)

    def _free_copy(self) -> None:
        _C.free_buffer(self._addr)
        self._addr = 0

    def __del__(self) -> None:
        if self._addr != 0:
            self.close()


def view(base: torch.Tensor, like: tuple[Any, ...]) -> torch.Tensor:
    """The tensor of which :func:`shape_of` told the shape, over restored bytes."""
    dtype, size, stride, offset = like
    empty = torch.empty(0, dtype=dtype, device=base.device)
    return empty.set_(base.untyped_storage(), offset, size, stride)


def shape_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What makes the tensor out of its storage: dtype, size, stride and offset."""
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


def is_hosted(address: int) -> bool:
    """Whether it is that of a block of oomph's on the host."""
    try:
        return bool(_C.place(address)[0] == _C.TIER_HOST)
    except ValueError:  # other memory
        return False
