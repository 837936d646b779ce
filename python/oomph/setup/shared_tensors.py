"""CUDA tensors that torch.multiprocessing sends to processes that have no oomph.

PyTorch's own allocator cannot open what oomph shares, and would say that it comes from
a future version of PyTorch. So such a tensor brings the settings along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from oomph import settings as _settings

_rebuild: Callable[..., Any] | None = None  # PyTorch's own function


def follow(
    torch: ModuleType, settings: dict[str, Any], rebuild: Callable[..., Any]
) -> None:
    """Has tensors that this process sends bring its settings along.

    Args:
        torch: PyTorch.
        settings: All of them, of which the usual need not be sent.
        rebuild: What the other process calls with these settings, and with what
            PyTorch's own function would get.
    """
    global _rebuild
    usual = _settings.complete({})
    changed = {key: value for key, value in settings.items() if value != usual[key]}
    reductions = torch.multiprocessing.reductions
    _rebuild = reductions.rebuild_cuda_tensor
    reductions.rebuild_cuda_tensor = functools.partial(rebuild, changed)


def rebuilt(*arguments: Any, **named: Any) -> Any:
    """A tensor that came from another process, as PyTorch itself opens it."""
    assert _rebuild is not None  # since oomph was installed
    return _rebuild(*arguments, **named)


def check_not_late() -> None:
    """Refuses a tensor where oomph is not in use.

    Raises:
        RuntimeError: oomph cannot be installed here any more.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "PyTorch's own allocator cannot open a CUDA tensor that came from a "
            "process with oomph: set OOMPH_CONF in the environment of both, or "
            "call oomph.install() here, too, before CUDA is used"
        )
