"""The loop of programs that use libraries of other hands, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

STEPS = 4


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
