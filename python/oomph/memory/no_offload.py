"""Regions of a program in which nothing is offloaded."""

from __future__ import annotations

from contextlib import ContextDecorator

from oomph import _C


class _Region(ContextDecorator):
    """Counted in the core, for all threads; it keeps nothing itself, so it nests."""

    def __enter__(self) -> None:
        _C.forbid_offload(_C.BAN_REGION)

    def __exit__(self, *_: object) -> None:
        _C.allow_offload(_C.BAN_REGION)


def no_offload() -> _Region:
    """Forbids offload in a region: what does not fit on the device is an error.

    The region applies to the whole process while it lasts, since backward passes
    allocate in threads of their own. What is on the host already stays there. Regions
    may nest and overlap. As a decorator it applies to each call of a function.

    Returns:
        A context manager and decorator, which can be entered any number of times.

    Raises:
        torch.OutOfMemoryError: Within the region, from an allocation that does not
            fit.

    Example:
        >>> with oomph.no_offload():  # a benchmark: slow would be as bad as failed
        ...     output = model(batch)
        >>> @oomph.no_offload()
        ... def evaluate():
        ...     return model(batch)
    """
    return _Region()
