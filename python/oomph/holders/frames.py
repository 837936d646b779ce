"""Functions that are running, and their variables."""

from __future__ import annotations

import inspect
import itertools
import sys
import types
from collections.abc import Iterator
from traceback import walk_stack, walk_tb
from typing import Any

_COPY_REFERENCES = 3  # to a frame's copy: the frame's, a variable's, an argument's
LAST_ERROR = ("last_exc", "last_value", "last_traceback")  # of sys, in a session
_LOOKING = ("oomph.", "torch.")  # where a look begins


def running() -> list[types.FrameType]:
    """All that run, of every thread, innermost first.

    Without our own, and without PyTorch's that called these: they are about to end.
    """
    return [
        frame
        for top in sys._current_frames().values()
        for frame in itertools.dropwhile(_is_ending, (f for f, _ in walk_stack(top)))
    ]


def passing() -> set[int]:
    """What PyTorch's that are about to end have in variables, or in tuples of these.

    Such as what a module returns, while its hooks run. Gives identities.
    """
    ending = [
        frame
        for top in sys._current_frames().values()
        for frame in itertools.takewhile(_is_ending, (f for f, _ in walk_stack(top)))
        if _name_of(frame).startswith("torch.")  # its own would hold itself
    ]
    values = [value for frame in ending for value in locals_of(frame).values()]
    items = [item for value in values if isinstance(value, tuple) for item in value]
    return {*map(id, values), *map(id, items)}


def _is_ending(frame: types.FrameType) -> bool:
    return _name_of(frame).startswith(_LOOKING)


def _name_of(frame: types.FrameType) -> str:
    """Its module's."""
    return str(frame.f_globals.get("__name__", ""))


def position_of(
    frame: types.FrameType,
) -> tuple[int | None, int | None, int | None, int | None]:
    """First and last line, first and last column in bytes of what it is at.

    None where they are not known; Python 3.10 knows none.
    """
    if sys.version_info < (3, 11):
        return None, None, None, None
    number = frame.f_lasti // 2  # of the instruction
    return next(itertools.islice(frame.f_code.co_positions(), number, None))


def variables(frame: types.FrameType) -> dict[str, Any]:
    """A function's variables.

    Reading them makes a copy, which the frame keeps: it is emptied, or it would hold
    tensors for longer than the function does; unless it is what the function itself
    got from ``locals()``.
    """
    copy = frame.f_locals
    found = dict(copy)
    if sys.version_info < (3, 13) and sys.getrefcount(copy) <= _COPY_REFERENCES:
        copy.clear()
    return found


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a function; none of a module's or a class's body."""
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED == 0:
        return {}
    return variables(frame)


def gpu_tensors(traceback: types.TracebackType | None) -> Iterator[Any]:
    """Tensors on GPUs in the variables of functions that an error has passed."""
    import torch

    for frame, _ in walk_tb(traceback):
        for value in locals_of(frame).values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                yield value
