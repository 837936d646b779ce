"""What the allocators and the clocks of a script's devices say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import torch

_TRACE = [
    f"{what}.{pool}_pool.{counter}"
    for what in ("allocation", "requested_bytes")
    for pool in ("small", "large")
    for counter in ("allocated", "peak")
]


def metrics() -> list[dict[str, Any]]:
    """What the allocator says of each device; none before CUDA is used."""
    from oomph.setup.environment import collect_stats

    return [*collect_stats().values()]


def trace(found: Sequence[dict[str, Any]]) -> list[int]:
    """Counts and sums of all that the devices were asked for."""
    return [*chain(*sorted([each[name] for name in _TRACE] for each in found))]


def used(found: Sequence[dict[str, Any]]) -> list[int]:
    """The devices on which something was allocated."""
    return [d for d, each in enumerate(found) if each["allocated_bytes.all.peak"] > 0]


def other_bytes(found: Sequence[dict[str, Any]]) -> int:
    """What is in use and not the allocator's, on the device that has most of it."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    most = 0
    for device in used(found) or [0]:
        free_bytes, total_bytes = runtime.cudaMemGetInfo(device)
        own = found[device]["device_bytes"]
        most = max(most, total_bytes - free_bytes - own)
    return most


def step_ms(ends: Sequence[Any]) -> float:
    """The usual time of a step but for the first, which allocates states.

    Args:
        ends: CUDA events, or None.
    """
    marks = [end for end in ends if end is not None]
    if len(marks) < 2:
        return 0.0
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)))
