"""Tests for test_pytest_lines.py, which runs them under oomph."""

import pytest
import torch
from torch import nn

MIB = 1 << 20
kept = []


def take(size_mib):
    return torch.empty(size_mib * MIB, dtype=torch.uint8, device="cuda")


def take_too(size_mib):
    return torch.empty(size_mib * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture
def earlier():
    return take(100)


@pytest.mark.limit_cuda_memory("24 MiB")
def test_goes_beyond(earlier):
    first, rest = take(12), [take_too(16), take_too(16)]
    torch.cuda.reset_peak_memory_stats()
    del first
    rest.append(take(2))


@pytest.mark.limit_cuda_leaks("1 MiB")
def test_leaves(earlier):
    take(20)
    kept.append(take(4))


@pytest.mark.limit_cuda_leaks("1 MiB")
def test_leaves_a_gradient():
    layer = nn.Linear(1024, 1024, device="cuda")
    layer(torch.ones(1024, 1024, device="cuda")).sum().backward()
    kept.append(layer)


@pytest.mark.no_cuda_oom
def test_runs_out():
    held = take(200)
    with pytest.raises(torch.OutOfMemoryError):
        take_too(4 << 10)
    del held


@pytest.mark.limit_cuda_memory("1 MiB")
def test_uses_the_second_gpu():
    torch.empty(2 * MIB, dtype=torch.uint8, device="cuda:1")
