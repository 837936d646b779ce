"""Training on the simulated GPU gives the CPU's losses and parameters, bit for bit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest
import torch
from cuda_autocast import policy_of_gpu
from models import CASES, PROGRAMS, Program, train
from support import MIB, Simulated
from torch import nn

CARD = "256MiB,context=0,memory=values,cc=8.6,host=2GiB"
native = Simulated(CARD, None)
roomy = Simulated(CARD, "reserve:0,offload:off")
spilling = Simulated(CARD, "reserve:0,host_limit:1GiB")


def differences(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[int]:
    """Which values are not the same, bit for bit."""
    assert len(found) == len(wanted)
    return [
        i
        for i, (a, b) in enumerate(zip(found, wanted, strict=True))
        if a.dtype != b.dtype or not torch.equal(a, b)
    ]


def make_dropout_state() -> None:
    """Has PyTorch make the state of cuDNN's dropout, which it then keeps for good."""
    import remote

    before = torch.cuda.memory_allocated()
    network = nn.LSTM(1, 1, 2, dropout=0.5, device="cuda")
    network(torch.zeros(1, 1, 1, device="cuda"))
    del network
    remote.kept_bytes[0] += torch.cuda.memory_allocated() - before


def prepared(name: str) -> Program:
    program = PROGRAMS[name]
    if program.drops_in_cudnn:
        make_dropout_state()
    return program


@functools.cache
def train_on_cpu(name: str, steps: int = 3) -> list[torch.Tensor]:
    """The reference, which casts as a GPU does if it casts at all."""
    program = PROGRAMS[name]
    with policy_of_gpu() if program.autocast else contextlib.nullcontext():
        return train(program, "cpu", steps)


def check(name: str) -> None:
    program = prepared(name)
    wanted = train_on_cpu(name)
    assert differences(train(program, "cuda"), wanted) == []
    assert not torch.equal(train_on_cpu(name, steps=0)[-1], wanted[-1])  # it learns


@pytest.mark.long
@pytest.mark.parametrize("program", CASES)
@native
def test_pytorchs_allocator_gives_the_cpus_values(program):
    check(program)


@pytest.mark.long
@pytest.mark.parametrize("program", CASES)
@roomy
def test_oomph_gives_the_cpus_values(program):
    check(program)


# ---- with rescues


def rescues() -> int:
    import oomph

    return oomph.stats()["rescues"]


def fill_device() -> list[torch.Tensor]:
    """Takes device memory until there is no room for 4 KiB."""
    kept = []
    for size in (8 * MIB, MIB, MIB // 16, MIB // 256):
        before = rescues()
        while rescues() == before:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        kept.pop()  # falls back to the host
    return kept


class Shortage:
    """Leaves no device memory during one phase of training."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.rescues = 0

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if phase != self.wanted:
            yield
            return
        torch.cuda.empty_cache()
        kept = fill_device()
        before = rescues()
        yield
        self.rescues += rescues() - before
        del kept


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "evaluate"])
@pytest.mark.parametrize("program", [p for p in PROGRAMS if PROGRAMS[p].evaluate])
@spilling
def test_a_rescue_in_any_phase_changes_no_value(program, phase):
    chosen = prepared(program)
    shortage = Shortage(phase)
    found = train(chosen, "cuda", phase=shortage)
    assert differences(found, train_on_cpu(program)) == []
    assert shortage.rescues > 0


@pytest.mark.long
@pytest.mark.parametrize("program", CASES)
@spilling
def test_a_card_that_is_always_full_changes_no_value(program):
    chosen = prepared(program)
    wanted = train_on_cpu(program)
    kept = fill_device()
    before = rescues()
    assert differences(train(chosen, "cuda"), wanted) == []
    assert rescues() > before
    del kept
