"""Operators of libraries that are not simulated give results in sizes alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from samples import called, is_sized
from support import MIB, Simulated
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

simulated = Simulated("4GiB", None)


def results(op: Any, sample: Any, device: str) -> list[tuple[torch.Size, torch.dtype]]:
    return [(each.shape, each.dtype) for each in called(op, sample, device)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["float32", "complex64"])
@simulated
def test_pytorchs_own_samples_give_what_the_cpu_gives_in_size(kind):
    dtype = getattr(torch, kind)
    right: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    for op in op_db:
        if not is_sized(op) or dtype not in op.dtypes:
            continue
        for sample in list(op.sample_inputs("cpu", dtype))[:6]:
            wanted = results(op, sample, "cpu")
            try:
                got = results(op, sample, "cuda")
            except RuntimeError as error:
                if "not supported on CUDA" in str(error):  # by a GPU neither
                    continue
                wrong[op.name] = str(error)
                break
            most = 1 if op.name == "linalg.lstsq" else None  # the CPU tells a rank
            if got[:most] != wanted[:most]:
                wrong[op.name] = f"{got} is not {wanted}"
            right[op.name] += 1
    assert not wrong
    assert len(right) > 50 and right.total() > 250, right


# PyTorch has no kernels of these for a GPU, or wants a tensor on the CPU.
NOT_ON_A_GPU = {"sparse.mm", "tensor_split", "histogram", "histogramdd"}


@pytest.mark.long
@simulated
def test_each_operator_that_pytorch_has_samples_of_runs():
    count, failed = 0, {}
    for op in op_db:
        if torch.float32 not in op.dtypes or op.name in NOT_ON_A_GPU:
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32))[:1]:
            count += "device" not in sample.kwargs
            try:
                "device" in sample.kwargs or results(op, sample, "cuda")
            except Exception as error:
                failed[op.name] = str(error)
    assert not failed
    assert count > 550


@simulated
def test_what_needs_gradients_of_them_trains():
    x = torch.randn(2, 8, 32, 32, device="cuda", requires_grad=True)
    weight = torch.randn(8, 8, 12, 7, 2, device="cuda", requires_grad=True)
    modes = torch.fft.rfft2(x)  # a layer of a Fourier neural operator
    out = torch.zeros_like(modes)
    kept = modes[..., :12, :7]
    mixed = torch.einsum("bixy,ioxy->boxy", kept, torch.view_as_complex(weight))
    out[..., :12, :7] = mixed
    torch.fft.irfft2(out, s=(32, 32)).sum().backward()
    assert x.grad.shape == x.shape and weight.grad.shape == weight.shape
    spread = torch.randn(16, 16, device="cuda", requires_grad=True)
    spread = spread @ spread.T + torch.eye(16, device="cuda")
    normal = torch.distributions.MultivariateNormal(torch.zeros(16).cuda(), spread)
    u, s, v = torch.linalg.svd(spread)
    loss = normal.log_prob(normal.rsample((4,))).sum() + u.sum() + s.sum() + v.sum()
    (gradient,) = torch.autograd.grad(loss + torch.linalg.inv(spread).sum(), spread)
    assert gradient.shape == spread.shape


@simulated
def test_a_spectrogram_is_made():
    window = torch.hann_window(400, device="cuda")
    sound = torch.randn(4, 16000, device="cuda")
    found = torch.stft(sound, 400, 160, window=window, return_complex=True)
    assert found.shape == (4, 201, 101) and found.dtype is torch.complex64
    assert torch.istft(found, 400, 160, window=window).shape == (4, 16000)


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
@simulated
def test_sparse_matrices_are_multiplied_with_dense_ones(layout):
    adjacency = torch.eye(100).to_sparse(layout=getattr(torch, layout)).cuda()
    x = torch.randn(100, 16, device="cuda", requires_grad=True)
    layer = nn.Linear(16, 4).cuda()
    torch.sparse.mm(adjacency, layer(adjacency @ x)).sum().backward()
    assert x.grad.shape == x.shape
    assert (adjacency @ x[:, 0]).shape == (100,)


@simulated
def test_transforms_take_memory_for_their_results_and_for_work():
    x = torch.randn(1 << 22, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = torch.fft.rfft(x)
    result = found.numel() * 8
    assert torch.cuda.memory_allocated() - before == math.ceil(result / 512) * 512
    used = torch.cuda.max_memory_allocated() - before
    assert 2 * result <= used < 2 * result + 3 * MIB


@simulated
def test_values_are_not_known_and_errors_are_none():
    a = torch.randn(64, 64, device="cuda")
    assert not torch.linalg.inv(a).any()
    factors, pivots, failed = torch.linalg.lu_factor_ex(a)
    assert not failed.any() and not pivots.any() and not factors.any()
    known = torch.ones(8, device="cuda")
    assert torch.linalg.inv(known.diag()).sum().item() == 0  # and so is the sum


@simulated
def test_given_results_are_written():
    x = torch.randn(8, 8, device="cuda")
    out = torch.ones(3, device="cuda")
    found = torch.linalg.inv(x, out=out.resize_(0))
    assert found is out and out.shape == (8, 8) and not out.any()
    values, vectors = torch.empty(0, device="cuda"), torch.empty(0, device="cuda")
    torch.linalg.eigh(x, out=(values, vectors))
    assert values.shape == (8,) and vectors.shape == (8, 8)


# ---- what cannot be said


@simulated
@pytest.mark.parametrize(
    ("call", "operator"),
    [
        ("torch.sparse.mm(x.to_sparse(), x.to_sparse())", "_sparse_sparse_matmul"),
        ("torch._cslt_compress(x.half())", "_cslt_compress"),
    ],
)
def test_an_operator_whose_result_has_no_known_size_is_named(call, operator):
    x = torch.randn(64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(NotImplementedError) as caught:
        eval(call, {"torch": torch, "x": x})
    assert str(caught.value).startswith(
        f"aten::{operator} cannot run on the simulated GPU: it needs cuSPARSE"
    )
    del caught
    assert torch.cuda.memory_allocated() == before
