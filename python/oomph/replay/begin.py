"""What is there when a step begins, made so that the step can run again."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from oomph.replay.figures import CACHED_MIN, states_of
from oomph.replay.statements import Stretch, take_variables
from oomph.replay.tracking import Tracker

LONGER_MAX = 0.25  # times as long: what one call joins to them


def drop_half_made(optimizers: list[Any]) -> None:
    """Optimizers make their state where there is none; the last may be half made.

    Some have all of it from the begin: one that has as much as others stays.
    """
    for optimizer in optimizers:
        made = [*optimizer.state]
        sizes = [len(optimizer.state[parameter]) for parameter in made]
        if made and (len(made) == 1 or sizes[-1] < max(sizes)):
            del optimizer.state[made[-1]]


def loose(
    objects: list[Any], modules: list[nn.Module], optimizers: list[Any]
) -> list[torch.Tensor]:
    """Tensors that belong to no module, no gradient and no optimizer."""
    tensors = _tensors(objects)
    own = [*_gradients(tensors), *states_of(optimizers)]
    own += (b for module in modules for b in module.buffers(recurse=False))
    own += (tensor for tensor in tensors if tensor.requires_grad)
    known = set(map(address_of, own))
    return [tensor for tensor in tensors if address_of(tensor) not in known]


def _tensors(objects: list[Any]) -> list[torch.Tensor]:
    return [o for o in objects if issubclass(type(o), torch.Tensor)]


def _gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those that Python has no objects for are among them."""
    return [t.grad for t in tensors if t.is_leaf and t.grad is not None]


def undo_joins(tensors: list[torch.Tensor]) -> None:
    """Cuts what the failed call had joined to, as a cache's first layers, as the rest.

    That are tensors of shapes like those of others, but a bit longer in one dimension.
    """
    alike = defaultdict(list)
    for tensor in tensors:
        if tensor.is_cuda and tensor.ndim > 2 and not tensor.requires_grad:
            for dim in range(1, tensor.ndim):
                rest = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
                alike[dim, rest, tensor.dtype].append(tensor)
    for (dim, *_), found in alike.items():
        lengths = {tensor.shape[dim] for tensor in found}
        if len(found) < CACHED_MIN or len(lengths) != 2:
            continue
        if max(lengths) - min(lengths) > LONGER_MAX * min(lengths):
            continue
        for tensor in found:
            with torch.inference_mode():
                tensor.data = tensor.narrow(dim, 0, min(lengths))


def without_ranks(modules: list[nn.Module]) -> None:
    """DDP hands its calls on: what it sends to others has no memory of its own."""
    for module in modules:
        if "reducer" in module.__dict__:
            module.__dict__["forward"] = module.module


def expect_converted(mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is made of a real tensor takes no memory of its own."""
    converter = mode.fake_tensor_converter
    convert = converter.from_real_tensor

    def expected(*args: Any, **kwargs: Any) -> FakeTensor:
        made = convert(*args, **kwargs)
        tracker.expect(made, next(a for a in args if isinstance(a, torch.Tensor)))
        return made

    converter.from_real_tensor = expected  # type: ignore[method-assign]


def take_names(stretch: Stretch, first: int, made: frozenset[int]) -> dict[str, Any]:
    """The variables of the frame, without those that the step makes anew.

    Those of the calls that the frame waited for are gone.
    """
    for frame in stretch.inner:
        take_variables(frame, is_inner=True)
    names = take_variables(stretch.frame)
    unbound = stretch.unbound() if first == 0 else set()
    for name in stretch.bound_first(first):
        is_anew = any(_is_of(value, made) for value in tree_leaves(names.get(name)))
        if is_anew or name in unbound:
            names.pop(name, None)
    return names


def _is_of(value: object, made: frozenset[int]) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return False
    return value.grad_fn is not None and address_of(value) in made


def address_of(tensor: torch.Tensor) -> int:
    """Where its storage begins; 0: nowhere."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def sizes_of(objects: list[Any], device: int) -> dict[int, int]:
    """The bytes of the tensors on a device, by where they begin."""
    return {
        address_of(tensor): tensor.untyped_storage().nbytes()
        for tensor in _tensors(objects)
        if _is_on(tensor, device)
    }


def _is_on(tensor: torch.Tensor, device: int) -> bool:
    """Whether all of its memory is one storage on that device."""
    if not tensor.is_cuda or tensor.layout is not torch.strided:
        return False
    return (tensor.device.index or 0) == device


def watch_real(tracker: Tracker, objects: list[Any], gone: frozenset[int]) -> None:
    """Counts what the step gives back of what was there, and what is held after all."""
    tensors = _tensors(objects)
    for tensor in (*tensors, *_gradients(tensors)):
        if _is_on(tensor, tracker.device):
            tracker.watch_real(tensor, address_of(tensor) in gone)
