"""What recurrent networks of cuDNN allocate, without cuDNN.

PyTorch calls them through code in C++ that needs a GPU, whatever its tensors are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class _Layers(torch.autograd.Function):
    """All layers of a network, as one node."""

    @staticmethod
    def forward(
        ctx: Any, reserve: int, shapes: Any, swaps: bool, *tensors: torch.Tensor
    ) -> Any:
        outputs, *states = (tensors[0].new_empty(shape) for shape in shapes)
        made = outputs.transpose(0, 1) if swaps else outputs, *states
        kept = tensors[0].new_empty(reserve, dtype=torch.uint8)
        ctx.save_for_backward(*tensors, made[0], kept)
        return made

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        *tensors, _, _ = ctx.saved_tensors
        return None, None, None, *map(torch.empty_like, tensors)


def _lstm_cell(gates: torch.Tensor, _: Any, cell: torch.Tensor, *__: Any) -> Any:
    states = [cell.new_empty(cell.shape) for _ in range(2)]
    return *states, gates.new_empty(gates.shape)


def _lstm_cell_back(_: Any, __: Any, cell: Any, ___: Any, kept: Any, bias: bool) -> Any:
    sums = kept.new_empty(kept.shape[1]) if bias else None
    return kept.new_empty(kept.shape), cell.new_empty(cell.shape), sums


def _gru_cell(_: Any, __: Any, state: torch.Tensor, *___: Any) -> Any:
    rows, width = state.shape
    return state.new_empty(state.shape), state.new_empty(rows, 5 * width)


def _gru_cell_back(gradient: torch.Tensor, _: Any, bias: bool) -> Any:
    rows, width = gradient.shape
    gates = [gradient.new_empty(rows, 3 * width) for _ in range(2)]
    sums = [gradient.new_empty(3 * width) if bias else None for _ in range(2)]
    return *gates, gradient.new_empty(gradient.shape), *sums


# What PyTorch has no shapes of.
CELLS: dict[Any, Callable[..., Any]] = {
    _aten._thnn_fused_lstm_cell.default: _lstm_cell,
    _aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_back,
    _aten._thnn_fused_gru_cell.default: _gru_cell,
    _aten._thnn_fused_gru_cell_backward.default: _gru_cell_back,
}


def stand_in() -> None:
    """Replaces PyTorch's own calls, in this process and for good."""
    for kind, gates in _GATES.items():
        setattr(torch._VF, kind, _network(gates, has_cell=kind == "lstm"))
    flatten = lambda self: None  # noqa: E731
    torch.nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]


def _network(gates: int, has_cell: bool) -> Callable[..., Any]:
    """As ``torch._VF.lstm`` and its kin, for both forms of their arguments."""

    def run(data: torch.Tensor, *arguments: Any) -> Any:
        if isinstance(arguments[2], bool):  # sequences of one length, by time and batch
            states, weights, _, layers, _, _, both_ways, batch_first = arguments
        else:
            _, states, weights, _, layers, _, _, both_ways = arguments
            batch_first = False
        states = list(states) if has_cell else [states]
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
            data, states = data.to(kind), [state.to(kind) for state in states]
            weights = [weight.to(kind) for weight in weights]
        directions = 2 if both_ways else 1
        steps = data.numel() // data.shape[-1]
        cells = layers * directions * (gates + 1) * states[-1].shape[-1]
        outer = data.shape[:-1][::-1] if batch_first else data.shape[:-1]
        shapes = [(*outer, directions * states[0].shape[-1])]  # by time, then batch
        shapes += [tuple(state.shape) for state in states]
        reserve = steps * cells * data.element_size()
        return _Layers.apply(  # type: ignore[no-untyped-call]
            reserve, shapes, batch_first, data, *states, *weights
        )

    return run
