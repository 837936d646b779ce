"""CUDA tensors that torch.multiprocessing sends to processes that have no oomph.

PyTorch's own allocator cannot open what oomph shares, and would say that it comes from
a future version of PyTorch. So such a tensor brings the settings along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import oomph
from oomph import settings as _settings
from oomph.base import state

_rebuild: Callable[..., Any] | None = None  # PyTorch's own function


def follow(torch: ModuleType, settings: dict[str, Any]) -> None:
    """Has tensors that this process sends bring its settings along.

    Args:
        torch: PyTorch.
        settings: All of them, of which the usual need not be sent.
    """
    global _rebuild
    usual = _settings.complete({})
    changed = {key: value for key, value in settings.items() if value != usual[key]}
    reductions = torch.multiprocessing.reductions
    _rebuild = reductions.rebuild_cuda_tensor
    reductions.rebuild_cuda_tensor = functools.partial(rebuild, changed)


def rebuild(settings: dict[str, Any], /, *arguments: Any, **named: Any) -> Any:
    """A tensor that came from a process with oomph, which this one then needs, too.

    Args:
        settings: Of the other process.
        *arguments: Of PyTorch's ``rebuild_cuda_tensor``.
        **named: The same, by name.

    Raises:
        RuntimeError: oomph is not in use here, and cannot be any more.
    """
    import torch

    if not state.is_installed():
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise RuntimeError(
                "a CUDA tensor came from a process that has oomph, which PyTorch's own "
                "allocator cannot open: set OOMPH_CONF in the environment of both, or "
                "call oomph.install() here, too, before CUDA is used"
            )
        oomph.install(**{**settings, "required": "yes"})
    assert _rebuild is not None  # since oomph was installed
    return _rebuild(*arguments, **named)
