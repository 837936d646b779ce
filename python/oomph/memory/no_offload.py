"""Regions of a program in which nothing is offloaded."""

from __future__ import annotations

from contextlib import ContextDecorator

from oomph import _C


class _Region(ContextDecorator):
    """Counted in the core, for all threads; it keeps nothing itself, so it nests."""

    def __enter__(self) -> None:
        _C.forbid_offload()

    def __exit__(self, *_: object) -> None:
        _C.allow_offload()


def no_offload() -> ContextDecorator:
    """A region in which nothing is offloaded: what does not fit the device is an error.

    It holds for the whole process while it lasts, since backward passes allocate in
    threads of their own. What lies on the host already stays there. Regions may nest
    and overlap; a function can be decorated with one.

    Returns:
        A context manager, to be entered as often as needed.

    Example:
        >>> with oomph.no_offload():  # a benchmark: slow is as bad as dead
        ...     time_step(model)
    """
    return _Region()
