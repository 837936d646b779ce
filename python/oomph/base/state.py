"""Whether oomph is PyTorch's allocator in this process, and with which settings."""

from __future__ import annotations

import functools
import sys
from typing import Any

_installed: dict[str, Any] | None = None  # the settings in force


def fix(values: dict[str, Any] | None) -> None:
    """Oomph is installed, with all these settings; None: it is no longer."""
    global _installed
    _installed = values


def is_installed() -> bool:
    """Tells whether oomph is PyTorch's allocator in this process.

    Returns:
        True after :func:`oomph.install`, ``oomph run`` or ``OOMPH_CONF`` took effect.
        False if another allocator has been put in its place since, which the log says
        once (``torch.cuda.memory.change_current_allocator``).

    Example:
        >>> oomph.is_installed()
        True
    """
    if _installed is None:
        return is_lost()
    return not is_replaced()


def is_lost() -> bool:
    """Whether it is PyTorch's allocator, and these modules were loaded anew since."""
    return _installed is None and allocator_name() == "oomph"


def check_not_lost() -> None:
    """Raises RuntimeError if these modules were loaded anew."""
    if is_lost():
        raise RuntimeError(
            "oomph is PyTorch's allocator already, but its Python modules have been "
            "reloaded since, perhaps by %autoreload or an upgrade while the notebook "
            "ran: restart the kernel"
        )


def settings_are_fixed() -> bool:
    """Whether oomph was installed, be it in use or not."""
    return _installed is not None


def settings() -> dict[str, Any]:
    """The settings in force. oomph must be installed."""
    assert _installed is not None
    return _installed


def allocator_name() -> str:
    """Whose memory PyTorch's tensors are, as PyTorch names it; ``none`` without it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return str(cuda.get_allocator_backend()) if cuda is not None else "none"


def is_replaced() -> bool:
    """Whether another allocator has been put in its place, which the log says once."""
    name = allocator_name()
    if _installed is None or name == "oomph":
        return False
    _tell_replaced(name)
    return True


@functools.cache
def _tell_replaced(name: str) -> None:
    import logging

    logging.getLogger("oomph").warning(
        "oomph was installed, but is no longer in use: another allocator (%s) has "
        "replaced it, perhaps by torch.cuda.memory.change_current_allocator()",
        name,
    )
