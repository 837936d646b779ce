"""Finds gradients that no step resets.

The cheap sign: a gradient is the same tensor at the end of successive steps, and was
written to. Then one parameter of the optimizer is asked, by hooks, what happens to its
gradient between a step and the next backward: nothing may have written to it.
"""

from __future__ import annotations

import ast
import weakref
from typing import Any

import torch

from oomph.holders.lines import Line
from oomph.leaks.findings import Finding
from oomph.leaks.lines import source

_SAME = 2  # steps that end with the same gradient before it is looked at closely
_STEPS = 2  # looked at closely


class _Sentinel:
    """One parameter, whose gradient is followed from step to step."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter = weakref.ref(parameter)
        assert parameter.grad is not None
        self.gradient = weakref.ref(parameter.grad)
        self.version = parameter.grad._version
        self.touched = False
        self.passes = 0
        self._handles = [
            parameter.register_hook(self._before),
            parameter.register_post_accumulate_grad_hook(self._after),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _gradient(self) -> torch.Tensor | None:
        parameter = self.parameter()
        return None if parameter is None else parameter.grad

    def _before(self, _: torch.Tensor) -> None:
        """Backward is about to add to the gradient."""
        gradient = self._gradient()
        self.passes += 1
        self.touched |= gradient is None or gradient is not self.gradient()
        self.touched |= gradient is None or gradient._version != self.version

    def _after(self, parameter: torch.Tensor) -> None:
        """Backward has added to it."""
        if parameter.grad is not None:
            self.version = parameter.grad._version

    def end_step(self) -> bool:
        """Whether gradients were added to those of the step before; begins anew."""
        gradient = self._gradient()
        added = self.passes > 0 and not self.touched and gradient is self.gradient()
        self.touched, self.passes = False, 0
        if gradient is not None:
            self.version = gradient._version
        return added


class Gradients:
    """Follows one optimizer."""

    def __init__(self) -> None:
        self._previous: tuple[weakref.ref[torch.Tensor], int] | None = None
        self._same = 0
        self._added = 0
        self._sentinel: _Sentinel | None = None
        self._sparse_bytes = 0  # of all gradients, one step before
        self._done = False

    def stop(self) -> None:
        """Leaves the parameter alone."""
        if self._sentinel is not None:
            self._sentinel.remove()
            self._sentinel = None

    def end_step(self, optimizer: Any, line: Line | None) -> Finding | None:
        """The optimizer took a step: the mistake, once it is certain."""
        if self._done:
            return None
        if self._sentinel is not None:
            return self._look(optimizer, line)
        parameter = _first_with_gradient(optimizer)
        if parameter is None or not self._is_same(parameter):
            return None
        self._sentinel = _Sentinel(parameter)
        return None

    def _is_same(self, parameter: torch.Tensor) -> bool:
        """The cheap sign: the gradient is what it was, but written to."""
        gradient = parameter.grad
        assert gradient is not None
        before, self._previous = (
            self._previous,
            (weakref.ref(gradient), gradient._version),
        )
        same = (
            before is not None
            and before[0]() is gradient
            and gradient._version > before[1]
        )
        self._same = self._same + 1 if same else 0
        return self._same >= _SAME

    def _look(self, optimizer: Any, line: Line | None) -> Finding | None:
        assert self._sentinel is not None
        before, self._sparse_bytes = self._sparse_bytes, _sparse_bytes(optimizer)
        if self._sentinel.end_step():
            self._added += 1
            if self._added < _STEPS:
                return None
        added, self._done = self._added, True
        self.stop()
        if added < _STEPS or _sets_data_back():
            return None
        grown = max(0, self._sparse_bytes - before)
        costs = "memory does not grow, but"
        if grown:
            costs = "sparse gradients grow with each backward, and"
        return Finding(
            "zero_grad missing",
            line,
            growth_bytes=grown,
            note=f"{costs} each step also uses the gradients of earlier batches: "
            "nothing reset them between a step and the next backward",
        )


def _first_with_gradient(optimizer: Any) -> torch.Tensor | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.is_leaf and parameter.grad is not None:
                return parameter  # type: ignore[no-any-return]
    return None


def _sparse_bytes(optimizer: Any) -> int:
    """What the entries of its sparse gradients take, each as often as it was added."""
    return sum(
        parameter.grad._indices().nbytes + parameter.grad._values().nbytes
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and parameter.grad.layout is torch.sparse_coo
    )


def _sets_data_back() -> bool:
    """Whether the user's code has ``p.grad.data.zero_()``, which leaves no trace."""
    for file in source.user_files():
        for call in source.calls(file, "zero_"):
            names = {
                n.attr for n in ast.walk(call.func) if isinstance(n, ast.Attribute)
            }
            if {"grad", "data"} <= names:
                return True
    return False
