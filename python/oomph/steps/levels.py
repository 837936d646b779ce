"""What is allocated as steps end, and whether that grows from step to step."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise

from oomph import _C

_STEPS = 8  # in a row, each with more than the one before

_levels: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_STEPS + 1))


def end_step() -> None:
    """A step has ended."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return  # to count devices may initialize it, and no fork survives that
    for device in range(torch.cuda.device_count()):
        _levels[device].append(_C.allocated(device)[1])


def growth_bytes(device: int) -> int:
    """By how much each of the last steps has left more allocated; 0: not all did.

    A buffer that fills with each step, or a leak: what a step needs grows as well.

    Args:
        device: Its index.
    """
    levels = _levels[device]
    if len(levels) <= _STEPS or any(b <= a for a, b in pairwise(levels)):
        return 0
    return (levels[-1] - levels[0]) // _STEPS
