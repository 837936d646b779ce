"""What ``window:gated`` has to know: every stream, and who waits for other processes.

While memory moves, all streams that oomph knows are held. Those that memory is
allocated on or recorded for it hears of by itself. A stream that only works on memory
of others, such as one that copies batches into buffers, it is told of here, when Python
makes it. Drivers before CUDA 12.5 need that, too: they tell what has finished of known
streams alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_known: set[tuple[int, int]] | None = None  # by device and id; None: nobody asks


def _note(stream: Any) -> None:
    """Tells the core of a stream, once."""
    from oomph import _C

    assert _known is not None
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
    global _known
    import torch

    _known = set()
    make: Callable[..., Any] = torch.cuda.Stream.__new__

    def make_known(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        stream = make(cls, *args, **kwargs)
        _note(stream)
        return stream

    torch.cuda.Stream.__new__ = staticmethod(make_known)  # type: ignore[method-assign]


def look() -> None:
    """Tells the core whether kernels may wait for those of other processes."""
    from oomph import _C

    if _known is None:
        return
    distributed = sys.modules.get("torch.distributed")
    _C.note_communicator(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
    )
