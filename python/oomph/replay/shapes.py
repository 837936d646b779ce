"""What PyTorch cannot tell of a tensor without memory, in a forked child."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_impls


def stand_in() -> None:
    """Teaches it some of cuDNN's operators, and to copy tensors deeply, for good."""
    known: Any = fake_impls.op_implementations_dict
    operators = torch.ops.aten
    for operator, shapes in (
        (operators.cudnn_grid_sampler, _sampled),
        (operators.cudnn_grid_sampler_backward, _like_both),
        (operators.cudnn_affine_grid_generator, _grid),
        (operators.cudnn_affine_grid_generator_backward, _transforms),
    ):
        known.setdefault(operator.default, shapes)
    torch.Tensor.__deepcopy__ = _copied  # type: ignore[method-assign]


def _sampled(_mode: Any, _operator: Any, values: Any, grid: Any) -> Any:
    return values.new_empty((*values.shape[:2], *grid.shape[1:-1]))


def _like_both(_mode: Any, _operator: Any, values: Any, grid: Any, _: Any) -> Any:
    return torch.empty_like(values), torch.empty_like(grid)


def _grid(_mode: Any, _operator: Any, transforms: Any, n: int, *size: int) -> Any:
    return transforms.new_empty((n, *size[1:], 2))


def _transforms(_mode: Any, _operator: Any, gradient: Any, n: int, *_: int) -> Any:
    return gradient.new_empty((n, 2, 3))


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """As ``Tensor.__deepcopy__``, which would copy a storage that is not there."""
    known: torch.Tensor | None = memo.get(id(tensor))
    if known is None:
        known = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = known
        if tensor.grad is not None:
            known.grad = _copied(tensor.grad, memo)
    return known
