"""The last error of a session: in notebooks and consoles its traceback stays.

It holds the variables of all functions that it went through, until the next error. It
does not grow, so it is looked for by itself.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from traceback import walk_tb
from types import TracebackType

from oomph.base.sizes import format_size
from oomph.holders.frames import gpu_tensors
from oomph.holders.lines import line_of
from oomph.leaks.findings import Finding
from oomph.memory.sites import is_user

_MIN_BYTES = 1 << 20  # less is not worth a word


def find() -> Finding | None:
    """What the last error's traceback holds, if it is much."""
    traceback = getattr(sys, "last_traceback", None)
    if not isinstance(traceback, TracebackType):
        return None
    line = None
    for frame, number in walk_tb(traceback):
        if is_user(frame.f_code.co_filename):
            line = replace(line_of(frame), line=number)
    storages = (tensor.untyped_storage() for tensor in gpu_tensors(traceback))
    held = {storage._cdata: storage.nbytes() for storage in storages}
    size_bytes = sum(held.values())
    if size_bytes < _MIN_BYTES:
        return None
    return Finding(
        "notebook",
        line,
        held_by="sys.last_traceback, of the last error",
        note=f"{format_size(size_bytes)} in variables of functions that have ended",
    )
