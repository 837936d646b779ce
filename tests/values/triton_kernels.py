"""Kernels of Triton, as programs write them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def half_of(x):
    return 0.5 * x


@triton.jit
def gelu_kernel(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < count)
    y = half_of(x) * (1 + libdevice.erf(x * 0.7071067811865476))
    tl.store(target + at, y, mask=at < count)


@triton.jit
def plus_one(place, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(place + at, tl.load(place + at, mask=at < count) + 1, mask=at < count)


@triton.jit
def sum_kernel(source, target, count, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(source + at, mask=at < count, other=0.0)
    tl.store(target, tl.sum(total))


@triton.jit
def mixed_kernel(x, y, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < count), tl.load(y + at, mask=at < count)
    found = a * b + tl.where(a < b, a, -b) / 3
    tl.store(target + at, found, mask=at < count)


@triton.jit
def square_dot_kernel(x, target, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    values = tl.load(x + rows * SIZE + columns)
    tl.store(target + rows * SIZE + columns, tl.dot(values, values).to(tl.bfloat16))


@triton.jit
def fails(place, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.static_assert(count == 0, "no such power")
    tl.store(place + at, 1.0)


tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})],
    key=["count"],
    reset_to_zero=["place"],
)(plus_one)


def gelu(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 256),)
    gelu_kernel[grid](x, out, x.numel(), BLOCK=256)
    return out


def add_one(x: torch.Tensor) -> None:
    plus_one[(triton.cdiv(x.numel(), 64),)](x, x.numel(), BLOCK=64)


def total(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(1, device=x.device)
    sum_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out


def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    mixed_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def square_dot(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    square_dot_kernel[(1,)](x, out, SIZE=x.shape[0])
    return out


def add_tuned(x: torch.Tensor) -> None:
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
