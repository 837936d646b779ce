"""What the allocator did, in numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from oomph import _C
from oomph.base import state
from oomph.steps import times

_MOVED = ("sent_bytes", "fetched_bytes", "waited_ms")

more_metrics: list[Callable[[int], dict[str, float]]] = []
"""Whoever knows what was moved ahead of need: of a device, those of ``_MOVED``."""


def stats(device: int | None = None) -> dict[str, Any]:
    """Gives statistics of one device.

    PyTorch's statistics have PyTorch's names, such as ``allocated_bytes.all.peak``;
    ``torch.cuda.memory_stats`` defines them. The table in docs/settings.md defines
    oomph's own, with their units. Like PyTorch's, ``allocated_bytes`` and the others
    count bytes on the device and on the host together; ``device_bytes`` and
    ``host_bytes`` tell them apart.

    Args:
        device: Index of the device; None: PyTorch's current one, or 0 without PyTorch.

    Returns:
        A dict of numbers, which are 0 before the device is used, a list of numbers
        (``rescues_last_steps``) and two strings (``allocator``, ``host_kind``). Names
        end in their unit: ``_bytes``, ``_ns``, ``_ms``, ``_bytes_per_s``; the others
        are counts.

    Raises:
        ValueError: There is no such device.

    Example:
        >>> now = oomph.stats(0)
        >>> now["rescues"], now["allocator"]
        (0, 'oomph')
        >>> now["device_bytes"] >= now["allocated_bytes.all.current"]
        True
    """
    torch = sys.modules.get("torch")
    cuda = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
    if device is None:
        device = cuda.current_device() if cuda is not None else 0
    # As many as there could be as long as CUDA is not in use.
    count = cuda.device_count() if cuda is not None else _C.DEVICE_MAX
    if device >= count:
        raise ValueError(f"there is no device {device}; there are {count}")
    return {
        "allocator": state.allocator_name(),
        **_C.stats(device),
        **_offload_metrics(device),
    }


def _offload_metrics(device: int) -> dict[str, float]:
    """What Python knows; 0 where nothing was offloaded, or no step has ended."""
    known = times.of_device(device)
    moved: dict[str, float] = dict.fromkeys(_MOVED, 0)
    for source in more_metrics:
        moved.update(source(device))
    return {
        **moved,
        "step_ms": known.last_ms,
        "step_ms_without_offload": known.last_without_ms,
    }
