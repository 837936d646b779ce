"""The reference for autocast says what PyTorch says, and each part of it counts."""

from __future__ import annotations

import re

import pytest
import torch
from cuda_autocast import is_cast_on, kernels, policy_of_gpu
from models import PROGRAMS, train
from support import Simulated

simulated = Simulated("256MiB,context=0,memory=values", None)


@simulated
def test_the_reference_knows_every_operator_that_a_gpu_casts():
    on_gpu = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and is_cast_on("AutocastCUDA", name)
    }
    others = re.compile("cudnn|[Dd]imname|names")  # not of the CPU, or not of Python
    assert set(kernels()) == {name for name in on_gpu if not others.search(name)}


def losses(name: str, device: str) -> list[float]:
    return [loss.item() for loss in train(PROGRAMS[name], device) if loss.dim() == 0]


@pytest.mark.parametrize("program", ["gpt, autocast", "cnn, autocast"])
@simulated
def test_the_cpus_own_autocast_gives_other_values(program):
    assert losses(program, "cpu") != losses(program, "cuda")


@simulated
def test_keeping_casts_of_parameters_counts_where_layers_are_shared():
    program = "gpt, autocast, layers shared"
    with policy_of_gpu(keeps_casts=False):
        assert losses(program, "cpu") != losses(program, "cuda")


@simulated
def test_the_cpu_has_its_own_autocast_back():
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with policy_of_gpu(), torch.autocast("cpu", torch.bfloat16):
        assert x.exp().dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert x.exp().dtype == torch.bfloat16
        assert torch.mm(x.float(), x.float()).dtype == torch.bfloat16


@simulated
def test_a_step_that_overflows_is_left_out():
    program = PROGRAMS["gpt, scaled, overflowing"]
    before, after = train(program, "cuda", steps=0), train(program, "cuda", steps=1)
    assert all(map(torch.equal, before, after[2:]))
    assert after[1] == program.scale / 2
