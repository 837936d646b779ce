"""Optimizers that decide by values how long they search.

``torch.optim.LBFGS`` ends a step where the gradient is zero, and so reads what nobody
has computed: its history, twice the parameters for each iteration that is remembered,
would never come to be. So it finds that it has not arrived yet, and that the function
is convex: each step has as many iterations as it may have, each with one look along its
line, and each is remembered. Its own code does all the rest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_NEVER = {"tolerance_grad": -1.0, "tolerance_change": -math.inf}
_CURVATURE = 1e-9  # more than LBFGS takes for none


class _Convex(TorchFunctionMode):
    """Where a gradient has changed, it has done so along the step that changed it.

    So no step is forgotten; of any other product along a direction it is zero, and so a
    search along a line ends with what it looked at first.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size  # of a vector of all parameters
        self.change: torch.Tensor | None = None  # of the gradient

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        found = function(*arguments, **(named or {}))
        if function is torch.Tensor.sub and found.shape == (self.size,):
            self.change = found
        elif function is torch.Tensor.dot and arguments[0].numel() == self.size:
            found.fill_(_CURVATURE if arguments[0] is self.change else 0)
        return found


def install() -> None:
    """Has each ``LBFGS`` of parameters on a simulated GPU search as long as it may."""
    torch.optim.LBFGS.step = _searching(torch.optim.LBFGS.step)  # type: ignore[method-assign]


def _searching(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def run(self: Any, closure: Callable[[], Any]) -> Any:
        if not all(parameter.is_cuda for parameter in self._params):
            return step(self, closure)
        group = self.param_groups[0]
        given = {name: group[name] for name in _NEVER}
        group.update(_NEVER)
        try:
            with _Convex(self._numel()):
                return step(self, closure)
        finally:
            group.update(given)

    return run
