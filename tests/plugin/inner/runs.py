"""Tests for test_pytest_runs.py, which runs them under oomph on a simulated GPU."""

import os

import pytest
import torch

MIB = 1 << 20
GROWTH = float(os.environ.get("GROWTH", "1"))
LOSS = float(os.environ.get("LOSS", "2.0"))


def take(size_mib):
    return torch.empty(int(size_mib * MIB), dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("count", [2, 3])
def test_takes(cuda_memory, count):
    held = take(16)
    blocks = cuda_memory(lambda: [take(8 * GROWTH) for _ in range(count)])
    assert len(blocks) == count
    del held


def test_takes_as_before(cuda_memory):
    with cuda_memory.measure():
        take(8)
    with cuda_memory.measure():
        take(4)
    assert cuda_memory.figures["peak_bytes"] == 8 * MIB


def test_is_rescued(cuda_memory):
    cuda_memory(lambda: [take(32) for _ in range(9)])


@pytest.mark.no_cuda_oom
def test_is_rescued_in_peace():
    assert len([take(32) for _ in range(9)]) == 9


@pytest.mark.no_cuda_oom(allow_rescues=False)
def test_is_rescued_to_its_harm():
    assert len([take(32) for _ in range(9)]) == 9


@pytest.mark.no_worse_metric("loss", tolerance="5%")
@pytest.mark.no_worse_metric("accuracy", better="higher", baseline=0.9)
def test_reports(cuda_memory):
    cuda_memory.metric("loss", torch.tensor(LOSS, device="cuda"))
    cuda_memory.metric("accuracy", 0.9)


def test_uses_both_fixtures(benchmark, cuda_memory):
    cuda_memory(take, 2)
    benchmark(lambda: None)


def test_of_another_kind():
    pass
