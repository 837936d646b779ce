"""Programs whose saved tensors all go to the host give the CPU's values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from models import CASES, train
from support import Simulated
from test_models import differences, prepared, train_on_cpu
from torch import nn

CARD = "256MiB,context=0,memory=values,cc=8.6,host=8GiB"
card = Simulated(CARD, "reserve:0,host_limit:4GiB")


@contextlib.contextmanager
def all_leave() -> Iterator[None]:
    """The planner, sending all that is saved, however small."""
    from oomph import planner
    from oomph.offload import activations

    small_bytes, activations.SMALL_BYTES = activations.SMALL_BYTES, 1 << 10
    planner.start(always=True)
    try:
        yield
    finally:
        activations.SMALL_BYTES = small_bytes


def sent_bytes() -> int:
    from oomph import planner

    return planner.explain()[0]["sent_bytes"]


@pytest.mark.long
@pytest.mark.parametrize("program", CASES)
@card
def test_what_left_and_came_back_changes_no_value(program):
    chosen = prepared(program)
    wanted = train_on_cpu(program)
    with all_leave():
        assert differences(train(chosen, "cuda"), wanted) == []
        assert sent_bytes() > 0


def train_frozen(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.Tanh()).to(device)
    for parameter in layers[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        x = torch.randn(128, 64, generator=generator).to(device)
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


@card
def test_a_model_of_which_half_is_frozen_trains_to_the_cpus_values():
    with all_leave():
        assert differences(train_frozen("cuda"), train_frozen("cpu")) == []
        assert sent_bytes() > 0


def train_two(device: str) -> list[torch.Tensor]:
    """Two models against each other, each with an optimizer, as GANs are trained."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    second = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (first, second)]
    generator = torch.Generator().manual_seed(1)
    for size in (64, 96, 64, 32, 96):  # shapes change
        z = torch.randn(size, 16, generator=generator).to(device)
        real = torch.randn(size, 32, generator=generator).to(device)
        fake = first(z)
        loss = second(fake.detach()).square().mean() - second(real).mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-second(fake).mean()).backward()
        optimizers[0].step()
    return [p.detach().cpu() for m in (first, second) for p in m.parameters()]


@card
def test_two_models_with_changing_shapes_train_to_the_cpus_values():
    with all_leave():
        assert differences(train_two("cuda"), train_two("cpu")) == []
        assert sent_bytes() > 0
