"""Storages on their way between the device and the host.

A storage that leaves is copied to a buffer on the host (``oomph_buffer``) on one side
stream, and comes back to a new place on another, so that both directions of the link
work at once. Nothing here waits: streams wait for each other on the device, and memory
that a copy still reads is reused only when the copy has finished.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph import _C, _torch
from oomph.base.log import logger
from oomph.steps import times

if TYPE_CHECKING:
    from oomph.recompute import timeline

_BYTES_PER_MS = 16e6  # of a link that was not measured yet

# Guards what the planner's threads share: plans, links, storages, where hooks are on.
# It is held for looking and noting alone: under it nothing waits for the device, asks
# for its memory or runs the program's code, and no other lock is taken.
lock = threading.RLock()

GONE, AS_IT_WAS, CHANGED = range(3)  # as csrc/torch/tensors/saved.hpp has them


def forget_in_child() -> None:
    """After a fork: the lock may be that of a thread which is not here."""
    global lock
    lock = threading.RLock()


class Link:
    """The two side streams of a device, and what went over them.

    Args:
        device: Index of a CUDA device.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)
        self.sending = threading.RLock()  # one thread sends at a time; before `lock`
        self.out_bytes = 0  # copied to the host so far
        self.back_bytes = 0  # copied to the device so far
        self.away_bytes = 0  # now on the host alone
        self.restored_bytes = 0  # now back, and still to be used
        # Of storages that ended since: bytes that were away, and that were restored.
        self.ended: deque[tuple[int, int]] = deque()
        # By the storages that came back: what has copies of them on the host.
        self.restored: weakref.WeakValueDictionary[int, OffloadedStorage] = (
            weakref.WeakValueDictionary()
        )
        self.waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self.step_waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.waited_ms = 0.0  # that the device waited for copies back, as measured
        self._before = 0, 0, 0.0  # this step: sent, fetched, waited

    def settle(self) -> None:
        """Takes account of storages that have ended. The caller holds the lock."""
        while self.ended:
            away_bytes, restored_bytes = self.ended.popleft()
            self.away_bytes -= away_bytes
            self.restored_bytes -= restored_bytes

    def note_copied(self, out_bytes: int, back_bytes: int) -> None:
        """Counts bytes that were sent over the link."""
        with lock:
            self.out_bytes += out_bytes
            self.back_bytes += back_bytes

    def note_wait(self, stream: torch.cuda.Stream, ready: torch.cuda.Event) -> None:
        """Has the stream wait for a copy, and its waiting measured."""
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record(stream)
        stream.wait_event(ready)
        after.record(stream)
        with lock:
            self.waits.append((before, after))
            self.step_waits.append((before, after))

    def speed(self) -> timeline.Link:
        """Its speed, as measured, or what a slow one has."""
        from oomph.recompute import timeline  # installing oomph goes without it

        speeds = _C.stats(self.device)
        out = speeds["link_to_host_bytes_per_s"] / 1e3 or _BYTES_PER_MS
        return timeline.Link(out, speeds["link_to_device_bytes_per_s"] / 1e3 or out)

    def take_step_waits(self) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        """Events around each wait since the last call."""
        with lock:
            taken, self.step_waits = self.step_waits, []
            return taken

    def end_step(self) -> tuple[int, int, float]:
        """What went over it since the last call, as far as is known.

        Returns:
            Bytes sent and fetched, and milliseconds waited.
        """
        self.collect_waits()
        out_bytes, back_bytes, ms = self._before
        self._before = self.out_bytes, self.back_bytes, self.waited_ms
        return (
            self.out_bytes - out_bytes,
            self.back_bytes - back_bytes,
            self.waited_ms - ms,
        )

    def collect_waits(self) -> None:
        """Adds up the waits that have ended. The caller holds the lock."""
        while self.waits and times.has_passed(self.waits[0][1]):
            before, after = self.waits.popleft()
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


class OffloadedStorage:
    """One storage that was sent to the host.

    It owns the copy there, and the restored storage while somebody is still to use it.
    A storage that somebody holds is used as it is, whatever became of it, as PyTorch
    would; the copy serves once it is gone. When it ends, and with it the graph, the
    program's streams wait for the copy from what others still hold: from then on it
    may be written to, on any of them, and the program knows of no other reader.

    Args:
        link: The link of its device.
        tensor: A tensor over the storage, which is alive and on the device. The caller
            lets go of it.
        sequence: Its place among all that was saved.
        stream: Whose work has made it what it is; None: that of the current one.

    Raises:
        MemoryError: The host has no room, within its limit.
        oomph._C.DriverError: The copy could not be queued.
    """

    def __init__(
        self,
        link: Link,
        tensor: torch.Tensor,
        sequence: int,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._addr = 0  # of the copy on the host
        self._kept: torch.UntypedStorage | None = None  # in place of the copy
        storage = tensor.untyped_storage()
        self.link = link
        self.bytes = storage.nbytes()
        self.storage = StorageWeakRef(storage)
        self.outline = _torch.outline(tensor)
        self.copied_version = _torch.version_now(self.outline)
        self.sequence = sequence
        self.users = 0  # packed tensors that have not been unpacked yet; `add_user`
        self.is_away = False
        self._fetching = threading.Lock()  # by one thread at a time; before `lock`
        self._base: torch.Tensor | None = None
        self._last: object | None = None  # the outline of the base that was made last
        self._ready: torch.cuda.Event | None = None  # its copy
        self._owner: torch.cuda.Stream | None = None  # that its memory belongs to
        self._waited: set[int] = set()  # streams that waited for the copy
        self._send(tensor, stream or torch.cuda.current_stream(link.device))
        with lock:
            link.note_copied(self.bytes, 0)
            link.away_bytes += self.bytes
            self.is_away = True

    def _send(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        link = self.link
        self._addr = _C.buffer(
            link.device, self.bytes, link.out.cuda_stream, link.back.cuda_stream
        )
        try:
            source = tensor.untyped_storage().data_ptr()
            tensor.record_stream(link.out)
            link.out.wait_stream(stream)
            copy(link.device, self._addr, source, self.bytes, link.out.cuda_stream)
        except BaseException:
            self._free_copy()
            raise

    def state(self) -> int:
        """Whether the storage that was sent is gone, as it was, or changed."""
        return _torch.storage_state(self.outline)

    def serves(self, tensor: torch.Tensor) -> bool:
        """Whether the copy has what the storage of a tensor has now.

        The storage was sent; or it came back, and is saved again, as it was used in a
        backward pass with ``create_graph=True``. Tensors over one storage may count its
        versions apart, from 0.
        """
        return (
            (self.state() == AS_IT_WAS or self._has_restored(tensor))
            and _torch.version_now(self.outline) == self.copied_version
            and tensor._version in (0, self.copied_version)
        )

    def _has_restored(self, tensor: torch.Tensor) -> bool:
        return (
            self._addr != 0
            and self._last is not None
            and _torch.storage_state(self._last) == AS_IT_WAS
            and self.link.restored.get(tensor.untyped_storage()._cdata) is self
        )

    def add_user(self) -> None:
        """One more packed tensor is over it. The caller holds the lock."""
        self.users += 1
        if self._base is None and self._last is not None and not self.is_away:
            self.link.away_bytes += self.bytes  # it came back, and leaves again
            self.is_away = True

    def stay(self) -> None:
        """Keeps a storage that somebody holds, and not its copy.

        The caller holds the lock.
        """
        self._kept = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if self._kept is not None:  # or else it has gone just now
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
        with self._fetching:
            if self._base is None and self.state() == GONE:
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
            ready = back.record_event()
        except BaseException:
            base.record_stream(back)  # which still writes to it
            raise
        with lock:
            self._base, self._last = base, _torch.outline(base)
            self.link.restored[base.untyped_storage()._cdata] = self
            self._ready, self._owner = ready, stream
            self._waited.clear()
            self.link.note_copied(0, self.bytes)
            self.link.restored_bytes += self.bytes
            self._not_away()
        return base

    def take(self, outline: object) -> torch.Tensor:
        """A tensor that was saved, for the current stream, for one of the users.

        Args:
            outline: The tensor's, of the storage that was sent.

        Raises:
            torch.OutOfMemoryError: As :meth:`fetch`.
        """
        stream = torch.cuda.current_stream(self.link.device)
        with self._fetching:
            tensor = _torch.original(outline)
            if tensor is None:
                base = self._restored()
                if base is None:
                    base = self._fetch()
                self._hand_to(stream, base)
                tensor = _torch.restored(outline, base)
            with lock:
                self.users = max(self.users - 1, 0)
                if self.users == 0:  # who unpacks again fetches again, if need be
                    self._drop_base()
        return tensor

    def _restored(self) -> torch.Tensor | None:
        """What was fetched last, if anybody still has it."""
        if self._base is not None or self._last is None:
            return self._base
        return _torch.original(self._last)

    def _hand_to(self, stream: torch.cuda.Stream, base: torch.Tensor) -> None:
        """Has a stream, and the memory's next owner, wait as they must.

        Each stream waits for itself: that one has waited says nothing of another.
        """
        assert self._ready is not None
        if stream.cuda_stream in self._waited:
            stream.wait_event(self._ready)
        else:
            self.link.note_wait(stream, self._ready)
            self._waited.add(stream.cuda_stream)
        if stream != self._owner:
            base.record_stream(stream)

    def _drop_base(self) -> None:
        if self._base is not None:
            self.link.restored_bytes -= self.bytes
        self._base = None

    @property
    def is_early(self) -> bool:
        """Whether it came back, and somebody is still to use it."""
        return self._base is not None

    def let_go(self) -> int:
        """Gives up what came back ahead of need; its copy on the host serves later.

        Returns:
            Its bytes; 0: it is in use, or not here.
        """
        if not self._fetching.acquire(blocking=False):
            return 0
        try:
            with lock:
                if self._base is None or not _torch.are_alone([self._base]):
                    return 0
                self._wait_before_reuse()
                self._drop_base()
                self.link.away_bytes += self.bytes
                self.is_away = True
                return self.bytes
        finally:
            self._fetching.release()

    def _wait_before_reuse(self) -> None:
        """What was restored and not used is freed while it may still be written to."""
        if self._base is None or self._waited:
            return
        assert self._ready is not None and self._owner is not None
        try:
            self._owner.wait_event(self._ready)
        except RuntimeError:
            self._base.record_stream(self.link.back)

    def _free_copy(self) -> None:
        _C.free_buffer(self._addr)
        self._addr = 0

    def _wait_before_writes(self) -> None:
        """Who holds the storage may write to it, now that nobody is to take it."""
        if self.state() == GONE:
            return
        try:
            with torch.cuda.device(self.link.device):
                if not torch.cuda.is_current_stream_capturing():
                    torch.cuda.current_stream().wait_stream(self.link.out)
                    _C.all_wait(self.link.device, self.link.out.cuda_stream)
        except (RuntimeError, _C.DriverError) as error:
            logger.debug("a copy may read what is written meanwhile: %s", error)

    def __del__(self) -> None:
        # The last reference may go anywhere, under any lock: this takes none.
        if self._addr == 0 and self._kept is None:
            return  # it was never sent
        restored_bytes = 0 if self._base is None else self.bytes
        self.link.ended.append((self.bytes if self.is_away else 0, restored_bytes))
        self._kept = None
        try:
            self._wait_before_writes()
            self._wait_before_reuse()
        finally:
            self._base = None
            if self._addr != 0:
                self._free_copy()
