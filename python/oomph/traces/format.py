"""The file of a trace, as docs/traces.md describes it: its ends, and records."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGIN = b'{"oomph trace": 1'
END = b"OOMPHEND"
DEVICES_MAX = 16
_LENGTH = struct.Struct("<Q")
_END, _ALLOC, _FREE, _MARK, _DEVICE = 0, 1, 2, 5, 6


class TraceError(ValueError):
    """A file is no trace, or is damaged; the text says what is wrong with it."""


@dataclass(frozen=True)
class Trace:
    """What a program asked for.

    Attributes:
        records: As the file has them, up to the end.
        devices: How many it used.
        about: Where it was recorded, and what is known besides.
    """

    records: bytes
    devices: int = 1
    about: dict[str, Any] = field(default_factory=dict)


def head(about: dict[str, Any]) -> bytes:
    """How a file begins."""
    return json.dumps({"oomph trace": 1, **about}).encode() + b"\n"


def tail(about: dict[str, Any]) -> bytes:
    """How it ends, behind the last record."""
    text = json.dumps(about).encode()
    return text + _LENGTH.pack(len(text)) + END


def write(path: Path, trace: Trace) -> None:
    """Writes a trace."""
    ends = tail({"devices": trace.devices})
    path.write_bytes(head(trace.about) + trace.records + ends)


def parse(data: bytes) -> Trace:
    """Reads what is in a file.

    Raises:
        TraceError: It is damaged.
    """
    line, _, rest = data.partition(b"\n")
    size = _LENGTH.size + len(END)
    if not rest.endswith(END) or len(rest) < size:
        raise TraceError(
            "it is cut short: its end is missing, as when the program was killed or "
            "the disk was full; record it anew"
        )
    (length,) = _LENGTH.unpack(rest[-size : -len(END)])
    at = len(rest) - size - length
    try:
        if at < 1:
            raise ValueError("its end is longer than the file")
        about, more = json.loads(line), json.loads(rest[at:-size])
        devices = int(more["devices"])
        if not 1 <= devices <= DEVICES_MAX:
            raise ValueError(f"it has {devices} devices")
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"it is damaged: {error}") from None
    return Trace(rest[:at], devices, {**about, **more})


class Writer:
    """Makes records of events that other tools have written."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._numbers: dict[tuple[int, int], int] = {}  # by device and address
        self._streams: dict[Any, int] = {}
        self._count = self._device = self._devices = 0

    def alloc(self, device: int, address: int, size: int, stream: Any) -> None:
        """A block was given out; one at its address is gone."""
        if size <= 0:
            return
        self.free(device, address)
        self._turn_to(device)
        number = self._streams.setdefault(stream, len(self._streams))
        self._put(_ALLOC, number, size, 0)
        self._numbers[device, address] = self._count
        self._count += 1

    def free(self, device: int, address: int) -> bool:
        """A block was given back; gives whether it is known."""
        number = self._numbers.pop((device, address), None)
        if number is not None:
            self._turn_to(device)
            self._put(_FREE, self._count - number)
        return number is not None

    def trace(self, about: dict[str, Any]) -> Trace:
        """All of it."""
        return Trace(bytes([*self._records, _END]), self._devices or 1, about)

    def _turn_to(self, device: int) -> None:
        if not 0 <= device < DEVICES_MAX:
            raise TraceError(f"it names device {device}")
        self._devices = max(self._devices, device + 1)
        if device != self._device:
            self._device = device
            self._put(_DEVICE, device)

    def _put(self, kind: int, *numbers: int) -> None:
        self._records.append(kind)
        for number in numbers:
            while number >= 0x80:
                self._records.append(number & 0x7F | 0x80)
                number >>= 7
            self._records.append(number)


def file_bytes(path: Path) -> bytes:
    """All of a file.

    Raises:
        TraceError: It cannot be read, or is empty.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(os.strerror(error.errno or 0)) from None
    if not data:
        raise TraceError("it is empty")
    return data
