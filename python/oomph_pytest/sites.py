"""Which lines hold GPU memory: told by PyTorch's history, which costs time.

It is recorded only where ``--cuda-memory-sites`` asks for it. A line is the innermost
of the user's own code. What backward allocates has none: it runs in threads without
Python.
"""

from __future__ import annotations

import os
import sysconfig
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from oomph.sizes import format_size

SHOWN = 10
NO_LINE = "no Python line (backward, or a library)"
_EVENTS_MAX = 1_000_000  # kept by PyTorch, the newest
_UNKNOWN = "Which lines hold it is not known: --cuda-memory-sites records that (slower)"


@dataclass(frozen=True)
class Site:
    """What one line holds."""

    where: str
    size_bytes: int
    count: int


@cache
def _libraries() -> tuple[str, ...]:
    """Folders of code that is not the user's."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {str(Path(torch.__file__).parent.parent)}  # site-packages, wherever
    folders.update(sysconfig.get_paths()[name] for name in names)
    return tuple(folder + os.sep for folder in sorted(folders))


@cache
def _is_own(filename: str) -> bool:
    return not filename.startswith((*_libraries(), "<frozen"))


def _place(filename: str, line: int, function: str) -> str:
    path = os.path.relpath(filename) if os.path.isabs(filename) else filename
    shown = filename if path.startswith("..") else path
    return f"{shown}:{line} in {function}"


def innermost_frame(frame: FrameType | None) -> str:
    """The innermost line of the user's own code on a stack."""
    while frame is not None:
        code = frame.f_code
        if _is_own(code.co_filename):
            return _place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return NO_LINE


def _innermost(frames: Iterable[dict[str, Any]]) -> str:
    """The same for the frames of PyTorch's history."""
    for frame in frames:
        if _is_own(frame["filename"]):
            return _place(frame["filename"], frame["line"], frame["name"])
    return NO_LINE


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
    """PyTorch's memory history while a test runs, if it is wanted.

    Args:
        is_wanted: Whether to record; what the test itself records is used as it is.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_on = is_wanted or torch._C._cuda_isHistoryEnabled()
        self._is_ours = is_wanted and not torch._C._cuda_isHistoryEnabled()
        if self._is_ours:
            torch.cuda.memory._record_memory_history(
                "all",
                context="alloc",
                stacks="python",
                max_entries=_EVENTS_MAX,
                clear_history=True,
            )

    def describe(self, when: str, at_peak: bool) -> str:
        """The lines that held most, as text.

        Args:
            when: How to call that time.
            at_peak: At the peak of each device; or else now.
        """
        if not self._is_on:
            return _UNKNOWN
        devices = self.top(at_peak)
        if not any(devices):
            return f"Allocated {when}: nothing that the test allocated"
        lines = [f"Allocated {when}, by line:"]
        for device, found in enumerate(devices):
            lines += [f"  GPU {device}:"] if found and device else []
            lines += [_row(site) for site in found[:SHOWN]]
            rest = found[SHOWN:]
            if rest:
                rest_bytes = sum(site.size_bytes for site in rest)
                lines.append(f"  {format_size(rest_bytes):>12}  by {len(rest)} others")
        return "\n".join(lines)

    def top(self, at_peak: bool) -> list[list[Site]]:
        """The sites of each device, those that hold most first."""
        traces: list[list[dict[str, Any]]] = torch.cuda.memory._snapshot()[
            "device_traces"
        ]
        return [
            _by_line(_replay(trace, _peak_of(trace) if at_peak else len(trace)))
            for trace in traces
        ]

    def stop(self) -> None:
        """Records no more."""
        if self._is_ours:
            torch.cuda.memory._record_memory_history(None)


def _by_line(alive: dict[int, dict[str, Any]]) -> list[Site]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in alive.values():
        where = _innermost(event.get("frames", ()))
        sizes[where] += event["size"]
        counts[where] += 1
    return [Site(w, size_bytes, counts[w]) for w, size_bytes in sizes.most_common()]


def _row(site: Site) -> str:
    blocks = "1 block" if site.count == 1 else f"{site.count} blocks"
    return f"  {format_size(site.size_bytes):>12}  {site.where}, {blocks}"
