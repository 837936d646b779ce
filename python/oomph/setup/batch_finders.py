"""Batch finders: while one runs, nothing is offloaded, so that it finds what fits.

A finder tries batches until one raises ``torch.OutOfMemoryError``. With rescues each
batch fits, and the finder takes one whose steps wait for the link. So those of
accelerate and Lightning run within :func:`batch_finder`, as others may.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ContextDecorator
from types import ModuleType
from typing import Any

from oomph import _C
from oomph.base import imports, state
from oomph.base.log import logger


class _Search(ContextDecorator):
    """Counted in the core, for all threads; it keeps nothing itself, so it nests."""

    def __enter__(self) -> None:
        _C.forbid_offload(_C.BAN_BATCH_FINDER)  # first: no planner starts from here on
        if state.settings_are_fixed():
            from oomph import planner

            planner.stop()

    def __exit__(self, *_: object) -> None:
        _C.allow_offload(_C.BAN_BATCH_FINDER)
        if state.settings_are_fixed():
            from oomph import planner

            planner.resume()


def batch_finder() -> _Search:
    """Has a search for the largest batch find one that fits the device.

    As long as the region lasts, nothing is offloaded or recomputed, in the whole
    process: what does not fit is an error, as without oomph. What the planner had
    learnt before is forgotten, and nothing is learnt meanwhile; afterwards blocks fall
    back to the host as ever. The batch finders of accelerate and Lightning run in such
    a region by themselves (``batch_finder:auto``). Regions may nest and overlap. As a
    decorator it applies to each call of a function.

    Returns:
        A context manager and decorator, which can be entered any number of times.

    Raises:
        torch.OutOfMemoryError: Within the region, from an allocation that does not
            fit.

    Example:
        >>> def fits(size):
        ...     try:
        ...         model(batch[:size]).sum().backward()
        ...     except torch.OutOfMemoryError:
        ...         return False
        ...     return True
        >>> size = len(batch)
        >>> with oomph.batch_finder():
        ...     while not fits(size):
        ...         size //= 2
    """
    return _Search()


# ---- Those of libraries


def _know_accelerate(module: ModuleType) -> None:
    """Its decorator, and whoever has imported it by name."""
    name = "find_executable_batch_size"
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def find(function: Any = None, *arguments: Any, **named: Any) -> Any:
        if function is None:
            return lambda later: find(later, *arguments, **named)
        return batch_finder()(original(function, *arguments, **named))

    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get(name) is original:
            setattr(other, name, find)


def _know_lightning(module: ModuleType) -> None:
    """The callback, which is what its Tuner uses, too."""
    finder = module.BatchSizeFinder
    finder.scale_batch_size = batch_finder()(finder.scale_batch_size)


_KNOWN: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.utils.memory": _know_accelerate,
    "lightning.pytorch.callbacks.batch_size_finder": _know_lightning,
    "pytorch_lightning.callbacks.batch_size_finder": _know_lightning,
}


def _try(know: Callable[[ModuleType], None], module: ModuleType) -> None:
    """A version that is otherwise runs as it is."""
    try:
        know(module)
    except AttributeError as error:
        logger.debug("no batch finder in %s: %s", module.__name__, error)


def start() -> None:
    """From now on finders of libraries are known, be they imported yet or not."""
    for name, know in _KNOWN.items():
        imports.when_imported(name, functools.partial(_try, know))
