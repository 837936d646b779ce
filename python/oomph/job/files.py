"""What a folder holds of a job: the statistics of its ranks, and their logs."""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOGS = ("", ".log", ".txt", ".out", ".err")  # their suffixes
_RANK = re.compile(r"(?:^|[^a-z])rank[ _=.-]?(\d+)", re.IGNORECASE)
_START_BYTES = 4096  # of a file that is looked at to see whether it is text


@dataclass(frozen=True)
class Statistics:
    """Those of a device that a process used, as ``oomph run --stats`` wrote them.

    Attributes:
        file: Where they are, within the folder.
        rank: Of the process, as the file's name says; None: it does not.
        device: Index of the device.
        is_only: Whether the process used no other device.
        values: As :func:`oomph.stats` gives them, maybe with ``leaks``.
    """

    file: str
    rank: int | None
    device: int
    is_only: bool
    values: dict[str, Any]

    @property
    def who(self) -> str:
        """The rank in words, or the file."""
        rank = self.file if self.rank is None else f"rank {self.rank}"
        return rank if self.is_only else f"{rank}, GPU {self.device}"


@dataclass(frozen=True)
class Log:
    """A log.

    Attributes:
        file: Where it is, within the folder.
        path: Where it is.
        rank: Whose it is; None: its lines may say, its name does not.
    """

    file: str
    path: Path
    rank: int | None


@dataclass(frozen=True)
class Job:
    """What a folder holds.

    Attributes:
        folder: Its name, as it was given.
        statistics: In the order of ranks.
        logs: In the order of ranks.
    """

    folder: str
    statistics: list[Statistics]
    logs: list[Log]

    @property
    def missing(self) -> list[int]:
        """Ranks that have no statistics where one with a higher number has."""
        ranks = {each.rank for each in self.statistics if each.rank is not None}
        return sorted({*range(max(ranks, default=-1) + 1)} - ranks)


def find(folder: str) -> Job:
    """Looks through a folder, and those in it.

    Args:
        folder: Its name.

    Raises:
        ValueError: It cannot be read, or has nothing of a job; the text says what it
            should have.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"there is no folder {folder}")
    statistics: list[Statistics] = []
    logs: list[Log] = []
    for path in root.rglob("*"):
        if not path.is_file():
            continue
        file = str(path.relative_to(root))
        try:
            if path.suffix == ".json":
                statistics += _statistics(path, file)
            elif path.suffix in _LOGS and _is_text(path):
                logs.append(Log(file, path, _rank_of_log(path)))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not statistics and not logs:
        raise ValueError(
            f"{folder} has no statistics (oomph run --stats {folder}/stats.json writes "
            f"a file for each rank) and no logs ({', '.join(_LOGS[1:])})"
        )
    statistics.sort(key=lambda each: (_order(each.rank), each.file, each.device))
    logs.sort(key=lambda log: (_order(log.rank), log.file))
    return Job(folder, statistics, logs)


def _order(rank: int | None) -> tuple[bool, int]:
    return rank is None, rank or 0


def _statistics(path: Path, file: str) -> Iterator[Statistics]:
    """Those in a file; none if it is of another kind."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return
    if not isinstance(found, dict):
        return
    used = {
        device: values
        for device, values in found.items()
        if device.isdecimal()
        and isinstance(values, dict)
        and "allocator" in values
        and values.get("device_bytes_peak", 0)
    }
    named = _RANK.search(path.name)
    rank = int(named[1]) if named else None
    for device, values in used.items():
        yield Statistics(file, rank, int(device), len(used) == 1, values)


def _is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    return bool(start) and b"\0" not in start


def _rank_of_log(path: Path) -> int | None:
    """As the names of launchers have it: ``rank3.log``, torchrun's ``3/stderr.log``."""
    named = _RANK.search(path.name)
    if named is not None:
        return int(named[1])
    return int(path.parent.name) if path.parent.name.isdecimal() else None


class JoinedLogs(io.RawIOBase):
    """Logs as one stream, in which each line says whose it is.

    Args:
        logs: In their order.
    """

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs
        self._firsts: list[int] = []  # the number of each one's first line
        self._lines = self._read()
        self._rest = b""

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer as far as a line does; gives the bytes; 0 at the end."""
        if not self._rest:
            self._rest = next(self._lines, b"")
        part = self._rest[: len(buffer)]
        buffer[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)

    def _read(self) -> Iterator[bytes]:
        number = 1
        for log in self._logs:
            self._firsts.append(number)
            whose = b"" if log.rank is None else b"[rank%d]: " % log.rank
            with open(log.path, "rb") as file:
                for line in file:
                    number += 1
                    ended = line if line.endswith(b"\n") else line + b"\n"
                    yield ended if line.startswith(b"[rank") else whose + ended

    def place(self, line: int) -> tuple[str, int]:
        """The file of a line of the stream, and the line's number there."""
        index = bisect_right(self._firsts, line) - 1
        return self._logs[index].file, line - self._firsts[index] + 1
