"""What operators take beside their results, held against what PyTorch allocates."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forecasts import predicted
from oomph.diagnosis import forecast
from oomph.replay.operators.besides import Card, bytes_of
from support import MIB, Simulated
from torch import nn

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("4GiB,context=0", "offload:off,reserve:0,error:full")
aten = torch.ops.aten
ROWS, COLUMNS = 4096, 8192  # 128 MiB in float32


def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype)


def taken_besides(function: Callable[[], Any]) -> int:
    """The most that is allocated while it runs, beyond what it gives."""
    kept = function()  # workspaces come with the first call
    del kept
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = function()
    gives = torch.cuda.memory_allocated() - before
    del kept
    return torch.cuda.max_memory_allocated() - before - gives


def assert_known(func: Any, *args: Any, within: float = 0.001, **kwargs: Any) -> None:
    result = func(*args, **kwargs)
    said = bytes_of(func, args, kwargs, result, Card.of(0))
    del result
    true = taken_besides(lambda: func(*args, **kwargs))
    assert said == pytest.approx(true, rel=within, abs=MIB), (said, true)


REDUCTIONS = [
    ("sum.dim_IntList", (ROWS, COLUMNS), [0]),
    ("sum.dim_IntList", (ROWS, COLUMNS), [1]),
    ("sum.dim_IntList", (65536, 48), [0]),
    ("sum.dim_IntList", (16384, 3072), [0]),
    ("sum.dim_IntList", (512, 1000), [0]),
    ("sum.dim_IntList", (8, 512, 1024), [0, 1]),
    ("sum.dim_IntList", (16, 64, 128, 128), [0, 2, 3]),
    ("sum.dim_IntList", (ROWS, 1001), [0]),
    ("mean.dim", (ROWS, COLUMNS), [0]),
    ("var.correction", (ROWS, COLUMNS), [0]),
    ("std.correction", (ROWS, COLUMNS), [0]),
    ("var_mean.correction", (ROWS, COLUMNS), [1]),
    ("amax.default", (ROWS, COLUMNS), [0]),
    ("max.dim", (ROWS, COLUMNS), 0),
    ("argmax.default", (ROWS, COLUMNS), 0),
    ("prod.dim_int", (ROWS, COLUMNS), 0),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("which", "shape", "dims"), REDUCTIONS)
@card
def test_partial_sums_are_known(which, shape, dims, dtype):
    operator, overload = which.split(".")
    func = getattr(getattr(aten, operator), overload)
    assert_known(func, made(*shape, dtype=getattr(torch, dtype)), dims)


@card
def test_partial_sums_of_spread_numbers_are_known():
    """As the gradient of a mean is, which has one number."""
    assert_known(aten.sum.dim_IntList, made(1).expand(ROWS, COLUMNS), [0])


@card
def test_what_is_counted_is_copied_first():
    x = made(ROWS, COLUMNS, dtype=torch.bool)
    assert_known(aten.sum.default, x)
    assert_known(aten.sum.dim_IntList, x, [1])
    assert_known(aten.sum.dim_IntList, x, [0])
    assert_known(aten.cumsum.default, x, 1)


@pytest.mark.parametrize("which", ["logsumexp", "huber", "logits", "softmax"])
@card
def test_products_before_they_are_summed_up_are_known(which):
    x, y = made(ROWS, COLUMNS), made(ROWS, COLUMNS)
    if which == "logsumexp":
        assert_known(aten.logsumexp.default, x, [-1])
    elif which == "huber":
        assert_known(aten.huber_loss.default, x, y)
    elif which == "logits":
        assert_known(aten.binary_cross_entropy_with_logits.default, x, y)
    else:
        func = aten._softmax_backward_data.default
        assert_known(func, x, y, -1, torch.float32)


@pytest.mark.parametrize("how", ["slice", "transposed", "contiguous"])
@card
def test_copies_of_what_is_not_contiguous_are_known(how):
    y = made(16, 256, 4096, dtype=torch.bfloat16)
    x = {
        "slice": made(16, 257, 4096, dtype=torch.bfloat16)[:, :-1],
        "transposed": made(16, 4096, 256, dtype=torch.bfloat16).transpose(1, 2),
        "contiguous": y,
    }[how]
    weight = made(4096, dtype=torch.bfloat16)
    for func in (aten._softmax.default, aten._log_softmax.default):
        assert_known(func, x, -1, False)
    assert_known(aten._log_softmax_backward_data.default, x, y, -1, torch.bfloat16)
    assert_known(aten._softmax_backward_data.default, y, y, -1, torch.bfloat16)
    assert_known(aten.native_layer_norm.default, x, [4096], weight, weight, 1e-5)
    assert_known(aten._fused_rms_norm.default, x, [4096], weight, 1e-5)
    kernel = made(4, 16, 3, 3, dtype=torch.bfloat16)
    more = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert_known(aten.convolution.default, x[None], kernel, *more)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@card
def test_copies_of_what_does_not_lie_as_a_convolution_reads_are_known(dtype, kernel):
    formats = (torch.contiguous_format, torch.channels_last)
    how = [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], 1
    x = made(16, 64, 64, 64, dtype=getattr(torch, dtype))
    weight = made(96, 64, kernel, kernel, dtype=x.dtype)
    gradient = made(16, 96, 64, 64, dtype=x.dtype)
    for each in itertools.product(formats, repeat=3):
        pairs = zip((x, weight, gradient), each, strict=True)
        a, b, c = (tensor.contiguous(memory_format=form) for tensor, form in pairs)
        assert_known(aten.convolution.default, a, b, None, *how)
        whats = [True, True, False]
        assert_known(aten.convolution_backward.default, c, a, b, None, *how, whats)


@pytest.mark.parametrize("columns", [512, 4096, 4097, COLUMNS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@card
def test_what_is_sorted_is_copied_where_it_is_long(columns, dtype):
    x = made(ROWS, columns, dtype=getattr(torch, dtype))
    assert_known(aten.sort.default, x, within=0.01)
    assert_known(aten.sort.stable, x, stable=True, dim=1, within=0.01)


@pytest.mark.parametrize("by_position", [True, False])
@pytest.mark.parametrize("width", [64, 80, 128])
@pytest.mark.parametrize("kind", ["efficient", "flash"])
@card
def test_backward_of_attention_sums_up_in_float32(kind, width, by_position):
    dtype = torch.float32 if kind == "efficient" else torch.bfloat16

    def part() -> torch.Tensor:
        if by_position:
            return made(8, 1024, 16, width, dtype=dtype).transpose(1, 2)
        return made(8, 16, 1024, width, dtype=dtype)

    query, key, value, gradient = (part() for _ in range(4))
    if kind == "efficient":
        out, *rest = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True
        )
        func = aten._scaled_dot_product_efficient_attention_backward.default
        more = (None, out, *rest, 0.0, [True, True, True, False])
    else:
        out, *rest, _ = aten._scaled_dot_product_flash_attention(query, key, value)
        func = aten._scaled_dot_product_flash_attention_backward.default
        more = (out, *rest[:5], 0.0, False, *rest[5:7])
    assert_known(func, gradient, query, key, value, *more, within=0.02)


def rows() -> torch.Tensor:
    return torch.zeros(ROWS, dtype=torch.long, device="cuda")


def spoken(y: torch.Tensor) -> torch.Tensor:
    scores = y.view(256, 16, -1).log_softmax(-1)
    targets = torch.ones(16, 20, dtype=torch.long, device="cuda")
    return F.ctc_loss(scores, targets, torch.full((16,), 256), torch.full((16,), 20))


def checked(y: torch.Tensor) -> torch.Tensor:
    if torch.isnan(y).any():
        raise FloatingPointError("the loss is not a number")
    return y.square().mean()


def by_channels(y: torch.Tensor) -> torch.Tensor:
    return nn.Linear(32, 32, device="cuda")(y.view(16, 32, -1).transpose(1, 2)).mean()


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mse": lambda y: F.mse_loss(y, torch.zeros_like(y)),
    "mse of each": lambda y: F.mse_loss(y, y.detach(), reduction="none").mean(),
    "smooth l1": lambda y: F.smooth_l1_loss(y, torch.zeros_like(y)),
    "probabilities": lambda y: F.binary_cross_entropy(y.sigmoid(), y.detach()),
    "smoothed labels": lambda y: F.cross_entropy(y, rows(), label_smoothing=0.1),
    "speech": spoken,
    "largest": lambda y: y.amax(-1).mean(),
    "gathered": lambda y: y.gather(1, rows()[:, None].expand(ROWS, COLUMNS)).mean(),
    "chosen rows": lambda y: y[rows()].mean(),
    "not contiguous": by_channels,
    "checked": checked,
}


@pytest.mark.parametrize("which", LOSSES)
@card
def test_steps_with_such_operators_are_predicted(which):
    loss_of = LOSSES[which]

    def train() -> None:
        model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, COLUMNS)).cuda()
        x = torch.ones(ROWS, 256, device="cuda")
        for _ in range(2):
            loss = loss_of(model(x))
            loss.backward()
            del loss
            model.zero_grad()

    predicted(train, fraction=0.8, within=0.005)
