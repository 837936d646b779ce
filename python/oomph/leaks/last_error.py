"""The last error of a session: in notebooks and consoles its traceback stays.

It holds the variables of all functions that it went through, until the next error. It
does not grow, so it is looked for by itself.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import TracebackType

import torch

from oomph.base.sizes import format_size
from oomph.holders.frames import variables
from oomph.holders.lines import line_of
from oomph.leaks.findings import Finding
from oomph.memory.sites import is_user

_MIN_BYTES = 1 << 20  # less is not worth a word


def find() -> Finding | None:
    """What the last error's traceback holds, if it is much."""
    traceback = getattr(sys, "last_traceback", None)
    held: dict[int, int] = {}
    line = None
    while isinstance(traceback, TracebackType):
        code = traceback.tb_frame.f_code
        if is_user(code.co_filename):
            line = replace(line_of(traceback.tb_frame), line=traceback.tb_lineno)
        if code.co_name != "<module>":
            for value in variables(traceback.tb_frame).values():
                if isinstance(value, torch.Tensor) and value.is_cuda:
                    storage = value.untyped_storage()
                    held[storage._cdata] = storage.nbytes()
        traceback = traceback.tb_next
    size_bytes = sum(held.values())
    if size_bytes < _MIN_BYTES:
        return None
    return Finding(
        "notebook",
        line,
        held_by="sys.last_traceback, of the last error",
        note=f"{format_size(size_bytes)} in variables of functions that have ended",
    )
