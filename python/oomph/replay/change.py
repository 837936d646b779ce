"""How a step may differ from the program's, and what makes it differ."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

Method = Callable[..., Any]

_DEPTH = 3  # of lists and dicts in which tensors of the batch are looked for


@dataclass(frozen=True)
class Change:
    """How a step is to differ from the program's.

    Attributes:
        batch: Size of the batch, the one to have instead, and along which dimension it
            is: the second, where time comes first. None: as it is.
        autocast: In ``torch.autocast`` with bfloat16.
        checkpoint: Identities of modules whose calls run again in backward.
        segments: Identity of an ``nn.Sequential``, and the indices that it is cut at:
            each part but the last runs again in backward.
        no_grad: Identities of modules whose calls record nothing.
        every_call_silent: No call records anything.
        halves: Parameters and buffers are of bfloat16.
    """

    batch: tuple[int, int, int] | None = None
    autocast: bool = False
    checkpoint: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    no_grad: tuple[int, ...] = ()
    every_call_silent: bool = False
    halves: bool = False

    @classmethod
    def of(cls, values: dict[str, Any]) -> Change:
        """That of a dict, as JSON has it."""
        lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        return cls(**{**values, **lists})

    def joined(self, other: Change) -> Change:
        """Both."""
        return Change(
            self.batch or other.batch,
            self.autocast or other.autocast,
            self.checkpoint + other.checkpoint,
            self.segments or other.segments,
            self.no_grad + other.no_grad,
            self.every_call_silent or other.every_call_silent,
            self.halves or other.halves,
        )


def change_modules(modules: list[nn.Module], change: Change) -> None:
    """Has modules run again in backward, record nothing, or have half the bits."""
    if change.halves:
        _halve(modules)
    if not (change.checkpoint or change.segments or change.no_grad):
        return
    from torch.utils.checkpoint import checkpoint

    def in_segments(layers: list[nn.Module], cuts: list[int], x: Any) -> Any:
        for begin, end in itertools.pairwise(cuts):
            part = functools.partial(functools.reduce, _call, layers[begin:end])
            x = checkpoint(part, x, use_reentrant=False)
        return functools.reduce(_call, layers[cuts[-1] :], x)

    for module in modules:
        if id(module) in change.checkpoint:
            module.forward = functools.partial(
                checkpoint, module.forward, use_reentrant=False
            )
        elif id(module) in change.segments[:1]:
            layers, cuts = [*module.children()], [0, *change.segments[1:]]
            module.forward = functools.partial(in_segments, layers, cuts)
        elif id(module) in change.no_grad:
            module.forward = torch.no_grad()(module.forward)


def _halve(modules: list[nn.Module]) -> None:
    """As ``Module.to(torch.bfloat16)``; what they are given is converted, too.

    Modules that are made later get the same.
    """
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    kind: Any = nn.Module
    register = kind.register_parameter

    def halved(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.is_floating_point():
            parameter.data = parameter.data.bfloat16()
        if _convert not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_convert, with_kwargs=True)
        register(module, name, parameter)

    kind.register_parameter = halved
    for module in modules:
        module.register_forward_pre_hook(_convert, with_kwargs=True)
        for known in (module._parameters, module._buffers):
            for name, tensor in known.items():
                if tensor is not None and tensor.is_floating_point():
                    half = tensor.detach().bfloat16()
                    half.requires_grad_(tensor.requires_grad)
                    both = made.setdefault(id(tensor), (tensor, half))
                    known[name] = both[1]  # type: ignore[assignment]


def _convert(_: nn.Module, args: Any, kwargs: Any) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.bfloat16() if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, convert, (args, kwargs))


def _call(x: Any, layer: nn.Module) -> Any:
    return layer(x)


def with_batch(
    names: dict[str, Any],
    used: set[str],
    bound: set[str],
    batch: tuple[int, int, int],
    carried: bool,
) -> dict[str, Any]:
    """The variables with all tensors of the batch cut.

    Those that a step makes anew are left of one with less of the batch, too; and what
    has a graph, if it is carried from step to step, and not kept as results are.
    """
    known: dict[int, Any] = {}
    for name in bound:
        value = names.get(name)
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            names[name] = value.detach()

    def cut(value: Any, depth: int) -> Any:
        size, wanted, dim = batch
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            is_whole = value.ndim > dim and value.shape[dim] == size
            is_carried = carried and not value.is_leaf
            if is_whole and (is_carried or not value.requires_grad):
                if id(value) not in known:
                    known[id(value)] = value.detach().narrow(dim, 0, wanted).clone()
                return known[id(value)]
            return value
        if depth == 0 or isinstance(value, nn.Module):
            return value
        if type(value) in (list, tuple):
            return type(value)(cut(v, depth - 1) for v in value)
        if isinstance(value, dict):
            for key, part in list(value.items()):
                value[key] = cut(part, depth - 1)
        elif isinstance(getattr(value, "data", None), dict):
            cut(value.data, depth - 1)  # a BatchEncoding
        return value

    return {n: cut(value, _DEPTH) if n in used else value for n, value in names.items()}


@contextlib.contextmanager
def replacing(
    things: list[Any], name: str, made: Callable[[Method], Method]
) -> Iterator[None]:
    """Has objects do something else in place of a method."""
    for thing in things:
        thing.__dict__[name] = made(getattr(thing, name))
    try:
        yield
    finally:
        for thing in things:
            thing.__dict__.pop(name, None)
