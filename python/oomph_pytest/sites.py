"""Which lines hold GPU memory.

Where oomph allocates, it knows the lines of large blocks (``oomph.memory.sites``).
Those of all blocks, with either allocator, are in PyTorch's history, which costs
time and is recorded only where ``--cuda-memory-sites`` asks for it; it has no line for
what backward allocates. A line is the innermost of the user's own code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from oomph.base import state
from oomph.base.tables import sized
from oomph.memory import sites

SHOWN = 10
_SIZE_WIDTH = 12  # characters
NO_LINE = "no Python line (backward, or a library)"
_EVENTS_MAX = 1_000_000  # kept by PyTorch, the newest
_UNKNOWN = (
    "The lines that hold it are unknown: --cuda-memory-sites records them (slower), "
    "and oomph knows those of large blocks (--oomph)"
)


@dataclass(frozen=True)
class Site:
    """What one line holds."""

    where: str
    size_bytes: int
    count: int


def _place(filename: str, line: int, function: str) -> str:
    return f"{sites.short(filename)}:{line} in {function}"


def _innermost(frames: Iterable[tuple[str, int, str]]) -> str:
    """The innermost line of the user's own code: of files, lines and functions."""
    return next(
        (_place(*frame) for frame in frames if sites.is_user(frame[0])), NO_LINE
    )


def innermost_frame(frame: FrameType) -> str:
    """That of a stack."""
    return _innermost(
        (code.co_filename, line, code.co_name)
        for code, line in ((frame.f_code, line) for frame, line in walk_stack(frame))
    )


def _replay(events: list[dict[str, Any]], end: int) -> dict[int, dict[str, Any]]:
    """The allocations alive before an event, of those that the history has seen."""
    alive: dict[int, dict[str, Any]] = {}
    for event in events[:end]:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_requested":
            alive.pop(event["addr"], None)
    return alive


def _peak_of(events: list[dict[str, Any]]) -> int:
    """After how many events most was allocated."""
    size_bytes = peak_bytes = at = 0
    known: set[int] = set()
    for index, event in enumerate(events):
        if event["action"] == "alloc":
            known.add(event["addr"])
            size_bytes += event["size"]
        elif event["action"] == "free_requested" and event["addr"] in known:
            known.remove(event["addr"])
            size_bytes -= event["size"]
        if size_bytes > peak_bytes:
            peak_bytes, at = size_bytes, index + 1
    return at


class History:
    """PyTorch's memory history; one that the test itself records is used as it is."""

    kind = ""  # which blocks are known

    def __init__(self) -> None:
        self._is_ours = not torch._C._cuda_isHistoryEnabled()
        if self._is_ours:
            torch.cuda.memory._record_memory_history(
                "all",
                context="alloc",
                stacks="python",
                max_entries=_EVENTS_MAX,
                clear_history=True,
            )

    def note_peak(self, device: int) -> None:
        """The peak is found afterwards."""

    def top(self, at_peak: bool) -> list[list[Site]]:
        """The lines of each device, those that hold most first: at its peak, or now."""
        return [
            _by_line(_replay(trace, _peak_of(trace) if at_peak else len(trace)))
            for trace in torch.cuda.memory._snapshot()["device_traces"]
        ]

    def stop(self) -> None:
        """Records no more."""
        if self._is_ours:
            torch.cuda.memory._record_memory_history(None)


class Core:
    """What oomph's core knows; what was there before the test is left out."""

    kind = ", of blocks of 1 MiB and more"

    def __init__(self) -> None:
        devices = range(torch.cuda.device_count())
        self._before = [self._held(i, at_peak=False) for i in devices]
        self._at_peak: list[dict[int, tuple[int, int]]] = [{} for _ in devices]

    @staticmethod
    def _held(device: int, at_peak: bool) -> dict[int, tuple[int, int]]:
        held = sites.at_peak(device) if at_peak else sites.live(device)
        return {site.site: (site.size_bytes, site.count) for site in held}

    def note_peak(self, device: int) -> None:
        """Takes what the lines hold, before the core's peak is reset."""
        self._at_peak[device] = self._held(device, at_peak=True)

    def top(self, at_peak: bool) -> list[list[Site]]:
        """The difference to what was there before."""
        return [
            self._above(i, self._at_peak[i] if at_peak else self._held(i, at_peak))
            for i in range(len(self._before))
        ]

    def _above(self, device: int, held: dict[int, tuple[int, int]]) -> list[Site]:
        found = []
        for number, (size_bytes, count) in held.items():
            old_bytes, old_count = self._before[device].get(number, (0, 0))
            if size_bytes > old_bytes:
                where, blocks = _line_of(number), max(1, count - old_count)
                found.append(Site(where, size_bytes - old_bytes, blocks))
        return sorted(found, key=lambda site: site.size_bytes, reverse=True)

    def stop(self) -> None:
        """The core goes on."""


Lines = History | Core  # who knows the lines, while a test runs


def _line_of(number: int) -> str:
    site = sites.resolve(number)
    if site is None:
        return NO_LINE
    backward = ", its backward" if site.inferred else ""
    return f"{_place(site.file, site.line, site.function)}{backward}"


def start(is_history_wanted: bool) -> Lines | None:
    """Begins to know the lines of a test; None if nobody does."""
    if is_history_wanted or torch._C._cuda_isHistoryEnabled():
        return History()
    return Core() if state.is_installed() else None


def describe(lines: Lines | None, when: str, at_peak: bool) -> str:
    """The lines that held most, as text.

    Args:
        lines: Who knows them.
        when: How to call that time.
        at_peak: At the peak of each device; or else now.
    """
    if lines is None:
        return _UNKNOWN
    devices = lines.top(at_peak)
    if not any(devices):
        return f"Allocated {when}{lines.kind}: nothing that the test allocated"
    rows = [f"Allocated {when}, by line{lines.kind}:"]
    for device, found in enumerate(devices):
        rows += [f"  GPU {device}:"] if found and device else []
        rows += [_row(site) for site in found[:SHOWN]]
        rest = found[SHOWN:]
        if rest:
            rest_bytes = sum(site.size_bytes for site in rest)
            rows.append(sized(rest_bytes, f"by {len(rest)} others", _SIZE_WIDTH))
    return "\n".join(rows)


def _by_line(alive: dict[int, dict[str, Any]]) -> list[Site]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in alive.values():
        frames = event.get("frames", ())
        where = _innermost((f["filename"], f["line"], f["name"]) for f in frames)
        sizes[where] += event["size"]
        counts[where] += 1
    return [Site(w, size_bytes, counts[w]) for w, size_bytes in sizes.most_common()]


def _row(site: Site) -> str:
    blocks = "1 block" if site.count == 1 else f"{site.count} blocks"
    return sized(site.size_bytes, f"{site.where}, {blocks}", _SIZE_WIDTH)
