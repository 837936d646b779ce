"""The loop of programs that use libraries of other hands, and what they come to."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

STEPS = 3

_place = ["cuda"]


def seed() -> None:
    """Has all that draws begin anew."""
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


def place() -> str:
    """The device that programs compute on which can on either."""
    return _place[-1]


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Has them compute on the CPU."""
    _place.append("cpu")
    try:
        yield
    finally:
        _place.pop()


class Outcome(NamedTuple):
    """What a program comes to."""

    losses: list[torch.Tensor]
    learned: dict[str, torch.Tensor]


def learn(
    model: nn.Module,
    batches: Iterable[Any],
    loss_of: Callable[[Any], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
) -> Outcome:
    """The usual loop."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches:
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Outcome(losses, model.state_dict())
