"""Which lines of forward and which nodes of backward put bytes onto host pages.

A mode or hooks on modules would see this, too, but oomph runs nothing again under
these. So forward is watched as a profiler does, and backward by hooks on its nodes.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from oomph import _C

FIRST = 4  # steps before lines are seen: this is slow, and libraries are imported


class Where:
    """Bytes used on host pages in the last step, by line and by node."""

    def __init__(self) -> None:
        self.last: Counter[str] = Counter()
        self._found: Counter[str] = Counter()
        self._used_bytes = 0

    def end_step(self, steps: int) -> None:
        """So many have ended."""
        self._note("end of the step")
        if steps == FIRST:
            sys.setprofile(self._returned)
        self.last, self._found = self._found, Counter()

    def before_backward(self, roots: Any) -> None:
        """Hooks all nodes that backward from these will pass."""
        self._note("forward")
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        todo = [root.grad_fn for root in roots if root.grad_fn is not None]
        seen = set(todo)
        while todo:
            node = todo.pop()
            name = node.name()
            node.register_prehook(lambda _: self._note("between nodes"))
            node.register_hook(lambda *_, name=name: self._note(name))
            for parent, _ in node.next_functions:
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    todo.append(parent)

    def _returned(self, frame: Any, event: str, what: Any) -> None:
        if event == "c_return" and "oomph" not in frame.f_code.co_filename:
            path = Path(frame.f_code.co_filename)
            name = getattr(what, "__name__", "")
            self._note(f"{path.parent.name}/{path.name}:{frame.f_lineno} {name}")

    def _note(self, place: str) -> None:
        used_bytes = _C.stats(0)["host_used_bytes"]
        if used_bytes != self._used_bytes:
            self._found[place] += used_bytes - self._used_bytes
            self._used_bytes = used_bytes
