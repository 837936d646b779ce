"""What the allocator did, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomph import state

if TYPE_CHECKING:
    from collections.abc import Callable

_MOVED = ("sent_bytes", "fetched_bytes", "waited_ms")

more_figures: list[Callable[[int], dict[str, float]]] = []
"""Whoever knows what was moved ahead of need: of a device, those of ``_MOVED``."""

OWN_FIGURES: dict[str, str] = {
    "allocator": "whose memory PyTorch's tensors are: oomph, or the name of another",
    "device_bytes": "bytes of device memory that oomph holds, mapped or spare",
    "device_bytes_peak": "the most of it since the last reset of peaks",
    "host_bytes": "bytes of host memory that oomph holds in place of device memory",
    "host_bytes_peak": "the most of it since the last reset of peaks",
    "host_limit_bytes": "the most host bytes that all devices may take together",
    "device_limit_bytes": "the limit on device bytes; 0: the whole card",
    "host_block_bytes": "bytes of live blocks that lie on host memory",
    "rescues": "blocks that were born on host since the start",
    "rescued_bytes": "bytes of these blocks, added up",
    "steps": "training steps that ended",
    "step_rescues": "blocks born on host in the last step that ended",
    "rescues_last_steps": "a list: the same of each of the last 100 steps, newest last",
    "step_remapped_bytes": "bytes of free pages that moved to another address in the "
    "last step that ended",
    "pages_remapped": "free pages that moved to another address since the start",
    "pages_stolen": "of these, pages that moved to another stream",
    "page_bytes": "size of a physical page",
    "planned_hits": "allocations that came as the plan foresaw",
    "planned_misses": "allocations that came otherwise while a plan was in force",
    "plan_bytes": "address space of the plans in force",
    "promoted_bytes": "bytes of live blocks that moved to the device",
    "evicted_bytes": "bytes of live blocks that moved to the host",
    "swap_drains": "times that the GPU was waited for to move live blocks",
    "swap_ns": "nanoseconds that moving them took, waiting included",
    "swap_failures": "moves at the end of a step that the driver refused",
    "driver_ns": "nanoseconds spent off the fast path: driver calls and waiting",
    "rung_deferred": "times that deferred frees were looked for (record_stream)",
    "rung_grow": "times that spare or new pages were mapped",
    "rung_steal": "times that free pages of other holes were taken at once",
    "rung_wait": "times that the work which used them was waited for",
    "rung_callbacks": "times that PyTorch's free-memory callbacks were called",
    "rung_garbage": "times that Python's unreachable objects were collected",
    "rung_host": "times that a block was born on host",
    "rung_error": "times that nothing helped",
    "oom_missing_bytes": "bytes that were missing when nothing helped last",
    "garbage_bytes": "bytes that were freed while they were collected",
    "link_to_host_bytes_per_s": "measured speed of copies to the host; 0: not measured",
    "link_to_device_bytes_per_s": "measured speed of copies to the device; 0: likewise",
    "foreseen": "blocks put on the host at once, as none like it would fit",
    "foreseen_bytes": "bytes of these blocks, added up",
    "buffer_bytes": "host bytes of what was sent there ahead of need and is still away",
    "sent_bytes": "bytes sent to the host ahead of need since the start",
    "fetched_bytes": "bytes of these that came back",
    "waited_ms": "milliseconds that the device waited for them, as measured",
    "step_ms": "milliseconds of the last step that the device has finished",
    "step_ms_without_offload": "the same of the last that had nothing on the host",
    "guard_blocks": "blocks that guard unmapped when they were freed",
    "guard_rounding_bytes": "bytes that guarded live blocks take beyond their need, "
    "since each has pages of its own",
    "guard_space_bytes": "address space that guard keeps from being used again",
    "guard_reused_bytes": "address space used again all the same, as none was left",
    "foreign_bytes": "memory that MemPools have from an allocator of their own",
    "record_bytes": "host memory of oomph's own records",
    "host_kind": "which kind of host memory works here, once tried",
}
"""oomph's own keys of :func:`stats`, with their units and meanings."""


def stats(device: int | None = None) -> dict[str, Any]:
    """Statistics of one device.

    Holds PyTorch's figures under PyTorch's names (``allocated_bytes.all.peak``; see
    ``torch.cuda.memory_stats``) and oomph's own, which :data:`OWN_FIGURES` explains. As
    PyTorch's, they count bytes on the device and on the host together; ``device_bytes``
    and ``host_bytes`` tell them apart.

    Args:
        device: Index of the device; None: PyTorch's current one, or 0 without PyTorch.

    Returns:
        A dict of numbers, which are 0 before the device is used, a list of numbers
        (``rescues_last_steps``) and two texts (``allocator``, ``host_kind``).

    Raises:
        ValueError: The index is no device's.

    Example:
        >>> import oomph
        >>> oomph.stats(0)["rescues"]
        0
    """
    from oomph import _C

    if device is None:
        device = _current_device()
    elif device >= (count := _device_count()):
        raise ValueError(f"there is no device {device}; there are {count}")
    return {
        "allocator": state.allocator_name(),
        **_C.stats(device),
        **_offload_figures(device),
    }


def _offload_figures(device: int) -> dict[str, float]:
    """What Python knows; 0 where nothing was offloaded, or no step has ended."""
    from oomph import cost

    times = cost.of_device(device)
    moved: dict[str, float] = dict.fromkeys(_MOVED, 0)
    for source in more_figures:
        moved.update(source(device))
    return {
        **moved,
        "step_ms": times.last_ms,
        "step_ms_without_offload": times.last_without_ms,
    }


def _device_count() -> int:
    """How many devices there are, or could be as long as CUDA is not in use."""
    import sys

    from oomph import _C

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return _C.DEVICE_MAX
    return int(torch.cuda.device_count())


def _current_device() -> int:
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())
