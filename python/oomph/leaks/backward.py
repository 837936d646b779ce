"""``retain_graph=True`` where nothing goes back through the graph again.

While leaks are watched, each backward pass is noted: its line, and whether it kept its
graph. A program that needs the graph again takes it up without keeping it, at the
latest in the last pass of a step; one that keeps the graph in every last pass of a step
does so for nothing, unless part of the graph is older than the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oomph.holders.lines import Line, user_line
from oomph.leaks import graphs
from oomph.leaks.findings import Finding
from oomph.steps import events

_ENGINE = "_engine_run_backward"  # of torch.autograd: each pass goes through it
_LOOKS_MAX = 16  # at graphs that were kept: a look costs some microseconds a node
_STEPS = 3  # in succession


class Backward:
    """Notes the backward passes of a step.

    Args:
        each: Is called before each pass.
        ended: Is called after each that leaves gradients.
    """

    def __init__(self, each: Callable[[], None], ended: Callable[[], None]) -> None:
        self._each, self._ended = each, ended
        self._step_begins = events.next_node()
        self._last: Line | None = None  # of the last pass of a step that kept its graph
        self._steps = 0  # in succession whose last pass did, none of whose did not
        self._in_step: Line | None = None
        self._looks = 0  # at graphs that were kept
        self.created: Line | None = None  # of the last that left its graph in .grad
        self._original: Any = None
        self._wrapped: Any = None

    def start(self) -> None:
        """Begins to note."""
        original = getattr(torch.autograd, _ENGINE)

        def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._wrapped is not run_backward:  # another watch keeps it in place
                return original(tensors, *args, **kwargs)
            keeps = len(args) > 2 and bool(args[1]) and not args[2]
            self._note(tensors, keeps)
            leaves_gradients = bool(kwargs.get("accumulate_grad"))
            if len(args) > 2 and args[2] and leaves_gradients:
                self.created = user_line()
            given = original(tensors, *args, **kwargs)
            if leaves_gradients:
                self._ended()
            return given

        self._original, self._wrapped = original, run_backward
        setattr(torch.autograd, _ENGINE, run_backward)

    def stop(self) -> None:
        """Notes no more."""
        if getattr(torch.autograd, _ENGINE) is self._wrapped:
            setattr(torch.autograd, _ENGINE, self._original)
        self._wrapped = None

    def _note(self, tensors: Any, keeps: bool) -> None:
        self._each()
        if keeps and not self._is_older(tensors):
            self._in_step = user_line()
        else:
            self._in_step, self._steps = None, 0

    def _is_older(self, tensors: Any) -> bool:
        """Whether the graph goes back to before the step, which needs it kept."""
        self._looks += 1
        if self._looks > _LOOKS_MAX:
            return True
        roots = (t.grad_fn for t in tensors if isinstance(t, torch.Tensor))
        return any(
            root is not None and graphs.begins_before(root, self._step_begins)
            for root in roots
        )

    def end_step(self) -> Finding | None:
        """A step has ended: the mistake, once it was made often enough."""
        line, self._in_step = self._in_step, None
        self._step_begins = events.next_node()
        again = line is not None and line == self._last
        self._steps = self._steps + 1 if again else int(line is not None)
        self._last = line
        if line is None or self._steps < _STEPS:
            return None
        self._steps = 0
        return Finding(
            "retain_graph",
            line,
            note="the graph of a step, with all that "
            "forward saved, lives until the next step replaces its loss",
        )
