"""PyTorch's own samples of its operators, on a device of the simulated machine."""

from __future__ import annotations

from typing import Any

import torch

# Of cuFFT, cuSOLVER and MAGMA, besides those of torch.fft and torch.linalg.
_SIZED = {"cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "inverse", "istft"}
_SIZED |= {"logdet", "lu", "lu_solve", "ormqr", "pca_lowrank", "pinverse", "qr", "stft"}
_SIZED |= {"svd", "svd_lowrank", "triangular_solve"}


def is_sized(op: Any) -> bool:
    """Whether an operator is of a library that is not simulated."""
    return op.name.startswith(("linalg.", "fft.")) or op.name in _SIZED


def everywhere(value: Any, device: str) -> Any:
    """The same, with copies of all tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if type(value) in (list, tuple):
        return type(value)(everywhere(each, device) for each in value)
    if isinstance(value, dict):
        return {name: everywhere(each, device) for name, each in value.items()}
    return value


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in tensors(part)]
    return []


def called(op: Any, sample: Any, device: str) -> list[torch.Tensor]:
    """What an operator gives for a sample on a device."""
    arguments = everywhere([sample.input, *sample.args], device)
    return tensors(op.op(*arguments, **everywhere(sample.kwargs, device)))
