"""What rests between steps: the tensors of optimizers.

Their state is used by an optimizer's step alone, their parameters and gradients by
forward and backward too, all by the thread that trains. So between steps, and before a
capture of that thread, they may move.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator

import torch

_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def note(optimizer: torch.optim.Optimizer) -> None:
    """An optimizer takes a step."""
    _optimizers.add(optimizer)


def optimizers() -> list[torch.optim.Optimizer]:
    """All that have taken a step."""
    return list(_optimizers)


def state_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What it has beside what it trains."""
    for state in optimizer.state.values():
        for value in state.values() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                yield value


def trained_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Parameters and their gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad


def on_device(device: int) -> list[int]:
    """Where it lies on a device, what is needed most seldom first."""
    from oomph.staging import address_of

    known = optimizers()
    states = (tensor for optimizer in known for tensor in state_of(optimizer))
    trained = (tensor for optimizer in known for tensor in trained_by(optimizer))
    found = [t for t in itertools.chain(states, trained) if t.device.index == device]
    return [address for tensor in found if (address := address_of(tensor)) != 0]
