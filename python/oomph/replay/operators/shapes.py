"""What PyTorch cannot find out of a tensor without memory, in a forked child."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls


def stand_in() -> None:
    """Teaches it some operators, and to copy tensors deeply, for good."""
    torch.backends.mha.set_fastpath_enabled(False)  # one operator without shapes
    known: Any = fake_impls.op_implementations_dict
    operators: Any = torch.ops.aten
    for operator, shapes in (
        (operators.cudnn_grid_sampler, _sampled),
        (operators.cudnn_grid_sampler_backward, _like_both),
        (operators.cudnn_affine_grid_generator, _grid),
        (operators.cudnn_affine_grid_generator_backward, _transforms),
        (operators._use_cudnn_ctc_loss, _never),
        (operators._use_miopen_ctc_loss, _never),
        (operators._ctc_loss, _alignments),
        (operators._ctc_loss_backward, _like_scores),
    ):
        for overload in operator.overloads():
            known.setdefault(getattr(operator, overload), shapes)
    for operator in (operators.addmm, operators.baddbmm):
        for overload in (operator.dtype, operator.dtype_out):
            decomposition_table.pop(overload, None)  # which takes the type for beta
            known[overload] = _product
    torch.Tensor.__deepcopy__ = _copied  # type: ignore[method-assign]
    functions: Any = torch.nn.functional
    functions.linear = _adding_in_place(functions.linear)
    torch.ctc_loss = _by_lists(torch.ctc_loss)


def _sampled(_mode: Any, _operator: Any, values: Any, grid: Any) -> Any:
    return values.new_empty((*values.shape[:2], *grid.shape[1:-1]))


def _product(
    _mode: Any,
    _operator: Any,
    _: Any,
    left: Any,
    right: Any,
    kind: torch.dtype,
    out: Any = None,
    **__: Any,
) -> Any:
    if out is not None:
        return out
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=kind)


def _like_both(_mode: Any, _operator: Any, values: Any, grid: Any, _: Any) -> Any:
    return torch.empty_like(values), torch.empty_like(grid)


def _grid(_mode: Any, _operator: Any, transforms: Any, n: int, *size: int) -> Any:
    return transforms.new_empty((n, *size[1:], 2))


def _transforms(_mode: Any, _operator: Any, gradient: Any, n: int, *_: int) -> Any:
    return gradient.new_empty((n, 2, 3))


def _never(*_: Any) -> bool:
    return False


def _alignments(
    _mode: Any, _operator: Any, scores: Any, targets: Any, *arguments: Any, **_: Any
) -> Any:
    """Of all ways to read a target, by time: blanks are between its parts."""
    times, count, _classes = scores.shape
    lengths = arguments[1]
    longest = targets.shape[1] if targets.ndim > 1 else int(max(lengths))
    alphas = scores.new_empty(count, times, 2 * longest + 1)
    return scores.new_empty(count), alphas


def _like_scores(_mode: Any, _operator: Any, _: Any, scores: Any, *__: Any) -> Any:
    return torch.empty_like(scores)


def _by_lists(ctc_loss: Any) -> Any:
    """As ``ctc_loss``, which leaves lengths where they are for tensors of a class."""

    def run(scores: Any, targets: Any, *lengths: Any, **others: Any) -> Any:
        known = [
            n.tolist() if isinstance(n, torch.Tensor) and n.device.type == "cpu" else n
            for n in lengths
        ]
        return ctc_loss(scores, targets, *known, **others)

    return run


def _adding_in_place(linear: Any) -> Any:
    """As ``linear``, which adds a bias to a copy where tensors are of another class."""

    def run(data: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        if bias is None or data.ndim < 3 or data.is_contiguous():
            plain: torch.Tensor = linear(data, weight, bias)
            return plain
        return torch.matmul(data, weight.t()).add_(bias)

    return run


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """As ``Tensor.__deepcopy__``, which would copy a storage that is not there."""
    known: torch.Tensor | None = memo.get(id(tensor))
    if known is None:
        known = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = known
        if tensor.grad is not None:
            known.grad = _copied(tensor.grad, memo)
    return known
