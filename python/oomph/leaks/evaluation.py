"""Evaluation with gradients on: forward saves for a backward that never comes.

While leaks are watched, ``model.eval()`` is noticed, and the first calls of the model
after it show whether what they give has a graph. If training goes on and no backward
pass came between, nobody needed it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from oomph.holders.lines import Line, user_line
from oomph.leaks.calls import Outermost
from oomph.leaks.findings import Finding

_PHASES_MAX = 8  # of evaluation that are looked at


class Evaluation:
    """Follows models into evaluation and out of it."""

    def __init__(self) -> None:
        self._trained = Outermost("train", self._follow)
        self._phases = 0
        self._module: weakref.ref[torch.nn.Module] | None = None  # that is followed
        self._handle: Any = None
        self._call: tuple[Line | None, tuple[int, ...], str] | None = None
        self._found: list[Finding] = []

    def start(self) -> None:
        """Begins to notice."""
        self._trained.start()

    def stop(self) -> None:
        """Notices no more."""
        self._forget()
        self._trained.stop()

    def _forget(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._call = None

    def _follow(self, module: torch.nn.Module, mode: bool = True) -> None:
        """A model goes into evaluation or out of it."""
        if mode:
            if self._module is not None and self._module() is module:
                self._end_phase()
            return
        self._forget()
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if self._phases < _PHASES_MAX and not compiled:
            self._phases += 1
            self._module = weakref.ref(module)
            self._handle = module.register_forward_hook(self._called)

    def _called(self, module: torch.nn.Module, _: Any, result: Any) -> None:
        """The model was called; it is not followed any further in this phase."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if module.training or not torch.is_grad_enabled():
            return
        made = next((t for t in _tensors(result) if t.grad_fn is not None), None)
        if made is not None and made.is_cuda:
            self._call = user_line(), tuple(made.shape), str(made.dtype)

    def note_backward(self) -> None:
        """A backward pass: what was called is not for evaluation alone."""
        self._call = None

    def _end_phase(self) -> None:
        call = self._call
        self._forget()
        if call is not None:
            line, shape, dtype = call
            self._found.append(
                Finding(
                    "evaluation with gradients",
                    line,
                    shape=shape,
                    dtype=dtype.removeprefix("torch."),
                    note="the model was in evaluation, its result had a graph, and no "
                    "backward pass followed",
                )
            )

    def end_step(self) -> list[Finding]:
        """A step has ended: what was found."""
        self._end_phase()
        found, self._found = self._found, []
        return found


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's result, as far as it is made of usual containers."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, dict):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, (list, tuple)):
        for value in result:
            yield from _tensors(value)
