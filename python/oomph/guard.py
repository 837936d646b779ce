"""Use after free: which block a stray kernel may have touched.

With ``guard:unmap`` or ``guard:sync`` the pages of a block are unmapped once it is
freed, so that work which still uses it fails with "an illegal memory access". CUDA does
not report the address; the blocks unmapped last are the candidates. On the simulated
GPU the address is known, and with it the block. docs/guard.md says what is caught.
"""

from __future__ import annotations

import atexit
import re
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from oomph import _C, simulate
from oomph.base.log import logger
from oomph.base.sizes import format_size
from oomph.memory.sites import Site, resolve

SHOWN = 16
"""Candidates in the text of a report."""

_ILLEGAL = re.compile(r"illegal memory access|ILLEGAL_ADDRESS")
_NOT_MAPPED = re.compile(r"(0x[0-9a-f]+)(?:, which)? is not mapped")


@dataclass(frozen=True)
class Unmapped:
    """A block whose pages were unmapped after it was freed.

    Attributes:
        address: Address of its first byte. No other block has had it since.
        size_bytes: Bytes that it occupied: whole pages.
        requested_bytes: Bytes that were requested.
        stream: Handle of the stream that it was allocated on.
        on_host: Whether it was in host memory.
        allocated_at: The line that allocated it; None: unknown.
        freed_at: The line that was executed when it was freed; None: unknown, such as
            in threads of autograd.
        freed_ns: When it was freed, in nanoseconds of ``time.monotonic_ns()``.
        unmapped_ns: When its pages were unmapped, likewise.
    """

    address: int
    size_bytes: int
    requested_bytes: int
    stream: int
    on_host: bool
    allocated_at: Site | None
    freed_at: Site | None
    freed_ns: int
    unmapped_ns: int

    def __contains__(self, address: int) -> bool:
        """Whether an address lies in it."""
        return self.address <= address < self.address + self.size_bytes


@dataclass(frozen=True)
class Report:
    """Where a use after free may have happened.

    Attributes:
        device: Index of the device.
        fault_address: The address at which work met unmapped memory; None: CUDA did
            not report it, or there was no such access.
        candidates: The block at that address; if the address is not known, the blocks
            unmapped last, newest first.
        made_ns: When the report was made, in nanoseconds of ``time.monotonic_ns()``.
    """

    device: int
    fault_address: int | None
    candidates: tuple[Unmapped, ...]
    made_ns: int

    @property
    def is_exact(self) -> bool:
        """Whether the address is known, so that the candidate is the block used."""
        address = self.fault_address
        return address is not None and any(address in b for b in self.candidates)

    def __str__(self) -> str:
        """A line on what is known, then a paragraph for each candidate."""
        return "\n".join((self._head(), *map(self._paragraph, self.candidates[:SHOWN])))

    def _head(self) -> str:
        if not self.candidates:
            return f"GPU {self.device}: guard has not unmapped any block"
        if self.is_exact:
            return (
                f"GPU {self.device}: memory was used after it was freed, at "
                f"{self.fault_address:#x}, in this block:"
            )
        return (
            f"GPU {self.device}: if memory was used after it was freed, it was most "
            f"likely one of these blocks, which were unmapped last, newest first "
            f"({min(SHOWN, len(self.candidates))} of {len(self.candidates)} known):"
        )

    def _paragraph(self, found: Unmapped) -> str:
        kind = " on the host" if found.on_host else ""
        ago_ms = (self.made_ns - found.unmapped_ns) / 1e6
        late_ms = (found.unmapped_ns - found.freed_ns) / 1e6
        return (
            f"  {format_size(found.requested_bytes)}{kind} at {found.address:#x}, "
            f"stream {found.stream:#x}, unmapped {ago_ms:.1f} ms ago, {late_ms:.1f} ms "
            "after it was freed\n"
            f"    allocated at {found.allocated_at or 'an unknown line'}\n"
            f"    freed at     {found.freed_at or 'an unknown line'}"
        )


def report(device: int = 0) -> Report:
    """Says which blocks a use after free may have touched.

    It does not ask the driver, so it works after CUDA has failed. docs/guard.md says
    what ``guard:unmap`` and ``guard:sync`` catch.

    Args:
        device: Index of the device.

    Returns:
        The report; ``print()`` shows its text. It has no candidates if ``guard`` is
        off, or has not unmapped any block.

    Raises:
        ValueError: There is no such device.

    Example:
        >>> print(oomph.guard.report())  # after the error
        GPU 0: guard has not unmapped any block
    """
    rows = [
        Unmapped(
            *row[:4], row[4] == _C.TIER_HOST, resolve(row[5]), resolve(row[6]), *row[7:]
        )
        for row in _C.unmapped(device)
    ]
    address = _fault_address()
    named = [row for row in rows if address is not None and address in row]
    return Report(device, address, tuple(named or rows), time.monotonic_ns())


def _fault_address() -> int | None:
    """The address of the first fault that the simulated driver has kept."""
    found = (_NOT_MAPPED.search(text) for text in reversed(simulate.misuses()))
    return next((int(match[1], 16) for match in found if match), None)


# ---- Said by itself

_reported = False


def watch() -> None:
    """Logs reports when an illegal access ends the program, or a thread.

    The exception is shown as it would be without. One that was caught: at exit.
    """
    before, before_thread = sys.excepthook, threading.excepthook

    def on_exception(
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        before(kind, error, trace)
        _report_if_illegal([error])

    def on_thread_exception(arguments: threading.ExceptHookArgs) -> None:
        before_thread(arguments)
        _report_if_illegal([arguments.exc_value])

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    atexit.register(_report_at_exit)


def _report_if_illegal(errors: Iterable[BaseException | None]) -> None:
    if any(_ILLEGAL.search(str(error)) for error in errors):
        _report_once()


def _report_once() -> None:
    """Logs the report of each device on which guard has unmapped anything, once."""
    global _reported
    if _reported:
        return
    _reported = True
    for device in range(_C.DEVICE_MAX):
        found = report(device)
        if found.candidates:
            logger.error("%s", found)


def _report_at_exit() -> None:
    """Whether a device has failed, which the program may have kept to itself."""
    for device in range(_C.DEVICE_MAX):
        if _reported or not _C.unmapped(device):
            continue
        try:
            _C.memory_info(device)
        except _C.DriverError as error:
            _report_if_illegal([error])
