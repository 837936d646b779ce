"""Hooks that pile up: registered in every step, and never removed.

The cheap sign is PyTorch's own number of hooks ever registered. Where it grows, the
modules' hooks are counted, and the line of each registration is noted for some steps.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from oomph.holders.lines import Line, user_line
from oomph.leaks.findings import Finding

_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_COUNTS = 3  # in succession, each higher
_REST = 16  # steps between looks; then twice that


def _count(modules: Iterable[torch.nn.Module]) -> Counter[int]:
    """The hooks in each table of modules and their parameters, by its identity."""
    found: Counter[int] = Counter()
    for module in modules:
        for name in _TABLES:
            table = module.__dict__.get(name)
            if table:
                found[id(table)] = len(table)
        for parameter in module.__dict__.get("_parameters", {}).values():
            table = None if parameter is None else parameter._backward_hooks
            if table:
                found[id(table)] = len(table)
    return found


class Hooks:
    """Follows hooks from step to step."""

    def __init__(self) -> None:
        self._next = RemovableHandle.next_id
        self._steps = 0  # in succession in which hooks were registered
        self._counts: list[Counter[int]] = []
        self._lines: dict[int, Line] = {}  # where hooks of a table are registered
        self._rest = 0  # steps until hooks are counted again
        self._misled = 0
        self._original: Any = None

    def stop(self) -> None:
        """Notes no more lines."""
        if self._original is not None:
            RemovableHandle.__init__ = self._original  # type: ignore[method-assign]
            self._original = None

    def _start(self) -> None:
        original, lines = RemovableHandle.__init__, self._lines

        @functools.wraps(original)
        def init(handle: RemovableHandle, hooks_dict: Any, **options: Any) -> None:
            original(handle, hooks_dict, **options)
            line = user_line()
            if line is not None:
                lines[id(hooks_dict)] = line

        self._original = original
        RemovableHandle.__init__ = init  # type: ignore[method-assign,assignment]

    def end_step(self) -> bool:
        """A step has ended: whether the hooks of all modules are to be counted."""
        registered = RemovableHandle.next_id > self._next
        self._next = RemovableHandle.next_id
        self._steps = self._steps + 1 if registered else 0
        self._rest = max(0, self._rest - 1)
        if self._steps == 0 and self._counts:
            self._end_look()
        return self._steps >= 2 and self._rest == 0

    def count(self, modules: Iterable[torch.nn.Module]) -> Finding | None:
        """Counts; the mistake, once the hooks of a table grew in each of some steps."""
        if self._original is None:
            self._start()
        self._counts.append(_count(modules))
        if len(self._counts) < _COUNTS:
            return None
        first, middle, last = self._counts
        lines = dict(self._lines)
        self._end_look()
        for table, count in last.items():
            if first[table] < middle[table] < count and table in lines:
                grown = (count - first[table]) / (_COUNTS - 1)
                note = (
                    f"there were {count} when it was seen, and {grown:g} more come "
                    "with each step; all of them run"
                )
                return Finding("hooks", lines[table], note=note)
        return None

    def _end_look(self) -> None:
        """Notes no more lines, and looks again only after a while."""
        self.stop()
        self._counts.clear()
        self._lines.clear()
        self._misled += 1
        self._rest = _REST << min(self._misled, 10)
