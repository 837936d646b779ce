"""Reports every stream to the core, for drivers before CUDA 12.5.

Those say of known streams alone what has finished. The core hears by itself of those
that memory is allocated on or recorded for, but not of one that only works on memory of
others, such as one that copies batches into buffers: that is reported here, when
Python makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oomph import _C

_known: set[tuple[int, int]] = set()  # by device and id


def _note(stream: Any) -> None:
    """Tells the core of a stream, once."""
    key = (stream.device_index, stream.stream_id)
    if key in _known:
        return
    # PyTorch's own streams live as long as the process. Their ids are odd, or 0 for the
    # default stream; that of a stream made elsewhere is its address.
    lives = stream.stream_id == 0 or stream.stream_id % 2 == 1
    _C.know_stream(stream.device_index, stream.cuda_stream, lives)
    _known.add(key)


def start() -> None:
    """From now on every stream that Python makes is known."""
    import torch

    make: Callable[..., Any] = torch.cuda.Stream.__new__

    def make_known(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        stream = make(cls, *args, **kwargs)
        _note(stream)
        return stream

    torch.cuda.Stream.__new__ = staticmethod(make_known)  # type: ignore[method-assign]
