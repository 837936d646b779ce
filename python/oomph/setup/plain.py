"""The allocator as two plain C functions, for ``CUDAPluggableAllocator``.

What this interface reaches, and what only :func:`oomph.install` gives, is in
docs/plain_symbols.md.
"""

from __future__ import annotations

import atexit
import sys
import threading

from oomph import _C, settings
from oomph.base import log, state
from oomph.base.sizes import format_size
from oomph.memory import sites

_lock = threading.Lock()
_ready = False


def library_path() -> str:
    """Gives the library that has ``oomph_torch_malloc`` and ``oomph_torch_free``.

    ``torch.cuda.memory.CUDAPluggableAllocator`` takes these functions, process-wide or
    for a ``MemPool``. If oomph is not installed, the settings are those of
    ``OOMPH_CONF``; steps end with each optimizer's step if PyTorch is imported by now.
    docs/plain_symbols.md compares this with :func:`oomph.install`.

    Returns:
        The path of a shared library. The functions of this package use the same, so
        :func:`oomph.stats` counts what it allocates.

    Raises:
        SettingsError: ``OOMPH_CONF`` has a setting that is unknown or not allowed.

    Example:
        >>> import oomph, torch
        >>> allocator = torch.cuda.memory.CUDAPluggableAllocator(
        ...     oomph.library_path(), "oomph_torch_malloc", "oomph_torch_free"
        ... )
        >>> pool = torch.cuda.MemPool(allocator.allocator())
    """
    global _ready
    with _lock:
        if not _ready:
            if not state.settings_are_fixed():
                _prepare()
            _C.set_refusal_hook(_note_refusal)
            _ready = True
    return str(_C.__file__)


def _prepare() -> None:
    """Sets up the core as the environment says, and what belongs to it."""
    values = settings.complete(settings.from_environment() or {})
    _C.configure(**settings.for_core(values))
    _C.set_rescue_hook(log.rescued)
    sites.start()
    atexit.register(log.finish)
    if "torch" in sys.modules:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_end_step)


def _end_step(*_: object) -> None:
    _C.step()


def _note_refusal(device: int, size_bytes: int) -> None:
    """Process-wide PyTorch makes a tensor without memory of it: it must be said."""
    log.logger.error(
        "GPU %d: oomph_torch_malloc had no memory for %s; used process-wide, PyTorch "
        "makes a tensor at address 0 without an error (oomph.install() raises one)",
        device,
        format_size(size_bytes),
    )
