"""What is said about rescues: one line a step, and a summary at the end.

Through the logger ``oomph``; nothing else is ever said unasked.
"""

from __future__ import annotations

import functools
import logging

from oomph.sizes import format_size
from oomph.stats import stats

logger = logging.getLogger("oomph")


@functools.cache
def not_in_use(reason: str) -> None:
    """Says once that PyTorch's own allocator is used, and why."""
    logger.warning("oomph is not in use: %s", reason)


def _cost(size_bytes: int, bytes_per_s: int) -> str:
    if bytes_per_s <= 0:
        return "each pass over it runs at the speed of the link"
    return (
        f"each pass over it takes about {size_bytes / bytes_per_s * 1e3:.1f} ms "
        f"at {bytes_per_s / 1e9:.1f} GB/s"
    )


def rescued(device: int, size_bytes: int) -> None:
    """Reports the first rescue of a step. Called by the core, in the main thread.

    Args:
        device: The device that ran out of memory.
        size_bytes: Size of the block that was born on host.
    """
    now = stats(device)
    logger.warning(
        "GPU %d is out of memory: a block of %s was born on host (%s of %s there in "
        "use); %s",
        device,
        format_size(size_bytes),
        format_size(now["host_bytes"]),
        format_size(now["host_limit_bytes"]),
        _cost(size_bytes, now["link_to_device_bytes_per_s"]),
    )


def summary(device: int) -> str | None:
    """One line on the rescues of a device, or None if there were none."""
    from oomph import _C

    now = _C.stats(device)
    if now["rescues"] == 0:
        return None
    return (
        f"GPU {device}: {now['rescues']} blocks "
        f"({format_size(now['rescued_bytes'])} in all) were born on host in "
        f"{now['steps']} steps; at most "
        f"{format_size(now['host_bytes_peak'])} of host memory beside "
        f"{format_size(now['device_bytes_peak'])} of device memory"
    )


def log_summary(device_count: int) -> None:
    """Logs the summary of each device that had a rescue."""
    for device in range(device_count):
        line = summary(device)
        if line is not None:
            logger.warning(line)
