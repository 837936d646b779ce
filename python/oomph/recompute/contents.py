"""What tensors contain: compared bit by bit, and put back.

Bits are compared and not numbers, as a NaN differs from itself, and 0 equals -0. That
reads both once, and waits for the device. Where a copy to compare with would take too
much memory, a sum over the storage stands for it: it misses only changes that leave the
sum as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from oomph.base.sizes import SMALL_BYTES
from oomph.recompute.calls import flatten

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_BITS[tensor.element_size()])


def sum_of(tensor: torch.Tensor) -> int:
    """Of the bits of its storage: another sum, other contents."""
    if tensor.layout is not torch.strided:
        return 0
    words = torch.empty(0, dtype=torch.int64, device=tensor.device)
    storage = tensor.untyped_storage()
    return int(words.set_(storage, 0, (storage.nbytes() // 8,), (1,)).sum().item())


def same_bits(one: Any, other: Any) -> bool:
    """Whether two nests have the same shape, and their tensors the same bits."""
    (ones, shape), (others, again) = flatten(one), flatten(other)
    if shape != again:
        return False
    for a, b in zip(ones, others, strict=True):
        if not isinstance(a, torch.Tensor):
            if type(a) is not type(b) or a != b:
                return False
            continue
        if (
            not isinstance(b, torch.Tensor)
            or a.dtype != b.dtype
            or a.shape != b.shape
            or a.layout is not torch.strided
            or not torch.equal(_bits(a), _bits(b))
        ):
            return False
    return True


_Contents = list[tuple[torch.Tensor, torch.Tensor]]  # of buffers


class Undone:
    """Has a module's buffers as they are now; puts back what they were meanwhile.

    Large and sparse ones are not kept as they are now, nor those of batch norm, which
    only writes to them. Versions do not help: the kernels of batch norm write without
    counting. Nor are they counted here, as others may have saved them.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before: _Contents = []
        self._start = _contents(
            buffer
            for inner in module.modules()
            if not isinstance(inner, nn.modules.batchnorm._NormBase)
            for buffer in inner.buffers(recurse=False)
            if buffer.layout is torch.strided and buffer.nbytes <= SMALL_BYTES
        )

    def __enter__(self) -> None:
        self._before = _contents(self._module.buffers())
        self._versions = [buffer._version for buffer, _ in self._before]
        _set(self._start)

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, []
        _set(before)
        buffers = tuple(buffer for buffer, _ in before)
        torch._C._autograd._unsafe_set_version_counter(buffers, tuple(self._versions))


def _contents(buffers: Iterable[torch.Tensor]) -> _Contents:
    return [(buffer, buffer.detach().clone()) for buffer in buffers]


def _set(contents: _Contents) -> None:
    with torch.no_grad():
        for buffer, content in contents:
            buffer.detach().copy_(content)
