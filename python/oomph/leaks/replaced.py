"""Optimizers that still hold parameters which the model has replaced.

A parameter is replaced if no module has it, it has no gradient, and nothing but the
optimizer refers to it. It is told only if a module has parameters that no optimizer
trains: else it may have been left out on purpose. Sets of identities decide most of
that in one pass; only for what they leave the references are searched, which looks at
all objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from oomph.base.sizes import format_size
from oomph.holders.lines import Line
from oomph.holders.search import Search
from oomph.leaks.findings import Finding
from oomph.leaks.lines.source import puts_into


def find(
    optimizers: Iterable[Any], modules: list[torch.nn.Module], line: Line | None
) -> Iterator[Finding]:
    """Parameters that nothing holds but an optimizer, where others are a module's.

    Args:
        optimizers: Those that took steps.
        modules: All that there are.
        line: Where a step was taken, for want of a better line.
    """
    held = {id(p) for m in modules for p in m._parameters.values() if p is not None}
    trained = {id(p) for optimizer in optimizers for p in _parameters(optimizer)}
    for optimizer in optimizers:
        parameters = list(_parameters(optimizer))
        lost = [p for p in parameters if id(p) not in held and p.grad is None]
        if not lost or len(lost) == len(parameters):
            continue
        lost = _held_by_nothing_else(lost, optimizer)
        new = [module for module in modules if _is_untrained(module, trained)]
        if lost and new:
            yield _finding(optimizer, lost, _replacement(new, modules) or line)


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _held_by_nothing_else(
    lost: list[torch.Tensor], optimizer: Any
) -> list[torch.Tensor]:
    containers = [
        optimizer.state,
        *(group["params"] for group in optimizer.param_groups),
    ]
    chains = Search().chains(lost, containers)
    return [p for p, chain in zip(lost, chains, strict=True) if not chain.hops]


def _finding(optimizer: Any, lost: list[torch.Tensor], line: Line | None) -> Finding:
    state = [
        value
        for parameter in lost
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, torch.Tensor) and value.is_cuda
    ]
    size_bytes = sum(t.nbytes for t in (*lost, *state))
    return Finding(
        "replaced parameters",
        line,
        count=0,
        shape=tuple(lost[0].shape),
        dtype=str(lost[0].dtype).removeprefix("torch."),
        held_by=f"the {type(optimizer).__name__} only: {len(lost)} tensors",
        note=f"{format_size(size_bytes)} with their state",
        device=lost[0].device.index or 0,
    )


def _is_untrained(module: torch.nn.Module, trained: set[int]) -> bool:
    """Whether it has parameters to train, and no optimizer has any of them."""
    own = [p for p in module._parameters.values() if p is not None]
    return bool(own) and all(p.requires_grad and id(p) not in trained for p in own)


def _replacement(
    new: list[torch.nn.Module], modules: list[torch.nn.Module]
) -> Line | None:
    """Where one of the new modules came in."""
    for module in new:
        for name in _names(module, modules):
            line = puts_into(name)
            if line is not None:
                return line
    return None


def _names(module: torch.nn.Module, modules: list[torch.nn.Module]) -> Iterator[str]:
    """The names under which modules hold a module."""
    for outer in modules:
        for name, inner in outer._modules.items():
            if inner is module:
                yield name
