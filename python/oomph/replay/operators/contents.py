"""Values of small tensors of the device: what came from the CPU, and is made of that.

Programs decide by them: whether a mask hides anything, how long a sequence is, which
rows are chosen. A tensor without memory stands beside one on the CPU that has them.
Operators that are given such tensors alone run there as well; one that writes to it
with something unknown ends that for all that share its memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

REAL_MAX = 1 << 20  # elements of what is really computed on the CPU
_FLOATS_MAX = 1 << 12  # so many floats
_NAME = "oomph_known"  # the attribute of a tensor without memory


@dataclass
class _Memory:
    """What views of the same memory share: whether it has these values still."""

    is_known: bool = True


@dataclass(frozen=True)
class _Known:
    value: torch.Tensor
    memory: _Memory


def value_of(tensor: Any) -> torch.Tensor | None:
    """A tensor of the CPU with the values of another one; None: nobody knows them."""
    if not isinstance(tensor, FakeTensor):
        return tensor if _is_on_cpu(tensor) else None
    known: _Known | None = getattr(tensor, _NAME, None)
    return known.value if known is not None and known.memory.is_known else None


def item_of(tensor: Any) -> Any | None:
    """The number that a tensor without memory has; None: nobody knows it."""
    value = value_of(tensor) if isinstance(tensor, FakeTensor) else None
    if value is None:
        return None
    with _disable_current_modes():
        return value.item()


def count_of(mask: Any) -> int | None:
    """How many elements a mask chooses; None: nobody knows it."""
    value = value_of(mask)
    if value is None:
        return None
    with _disable_current_modes():
        return int(value.count_nonzero())


def narrow(part: torch.Tensor, whole: torch.Tensor, dim: int, length: int) -> None:
    """Has a part of a tensor known as far as the whole is: its first rows."""
    value = value_of(whole)
    if value is not None:
        with _disable_current_modes():
            keep(part, value.narrow(dim, 0, length).clone())


def note(func: Any, args: Any, kwargs: Any, given: Any, result: Any) -> None:
    """Computes what an operator gives, if that is known and small.

    Args:
        func: The operator; it has run on tensors without memory.
        args: Its arguments, where what is on the CPU is as the program has it.
        kwargs: The same.
        given: The tensors among them.
        result: What it gave.
    """
    if not given and not _is_certain(func):
        return
    made = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(made, list | tuple) or not all(map(_is_small, made)):
        made = ()
    found = _computed(func, args, kwargs, given) if made else None
    if found is None:
        if _writes(func):
            forget(given)
        return
    known = [k for t in given if (k := getattr(t, _NAME, None)) is not None]
    for tensor, value in zip(made, found, strict=True):
        keep(tensor, value, known)


def _computed(
    func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    """What an operator gives on the CPU; None: its arguments are not known.

    It writes to no tensor that the program itself has there: that may be shared.
    """
    values = {id(tensor): value_of(tensor) for tensor in given}
    is_known = _is_certain(func) and all(v is not None for v in values.values())
    is_own = _writes(func) and ("out" in kwargs or not isinstance(given[0], FakeTensor))
    if not is_known or is_own:
        return None
    if kwargs.get("device"):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    try:
        with _disable_current_modes():
            args, kwargs = tree_map_only(
                torch.Tensor, lambda tensor: values[id(tensor)], (args, kwargs)
            )
            found = func(*args, **kwargs)
    except (RuntimeError, IndexError):  # the CPU has no such operator, or refuses
        return None
    return [found] if isinstance(found, torch.Tensor) else list(found)


def keep(
    tensor: torch.Tensor, value: torch.Tensor, others: Iterable[_Known] = ()
) -> None:
    """Has a tensor without memory known; others may share its memory."""
    if not isinstance(tensor, FakeTensor) or tensor.shape != value.shape:
        return
    own = value.untyped_storage()._cdata
    same = [k.memory for k in others if k.value.untyped_storage()._cdata == own]
    memory = same[0] if same else _Memory()
    setattr(tensor, _NAME, _Known(value, memory))


def forget(tensors: Iterable[Any]) -> None:
    """Values of these, and of what shares their memory, are not known any more."""
    for tensor in tensors:
        known: _Known | None = getattr(tensor, _NAME, None)
        if known is not None:
            known.memory.is_known = False


def _is_on_cpu(tensor: Any) -> bool:
    is_plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    return is_plain and tensor.device.type == "cpu" and tensor.numel() <= REAL_MAX


def _is_small(tensor: Any) -> bool:
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        return False
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return tensor.numel() <= (_FLOATS_MAX if is_float else REAL_MAX)


@functools.cache
def _writes(func: Any) -> bool:
    return bool(func._schema.is_mutable)


@functools.cache
def _is_certain(func: Any) -> bool:
    """Whether what it gives depends on nothing but what it is given."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    is_aten = func.namespace == "aten"
    return is_aten and not is_random and "empty" not in func._opname
