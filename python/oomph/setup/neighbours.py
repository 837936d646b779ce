"""What stands beside oomph in this process and makes a part of it vain: it is logged.

docs/beside_others.md has the whole list.
"""

from __future__ import annotations

import ctypes
import os

from oomph import _C
from oomph.base.log import logger


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _library_of(function: str) -> str | None:
    """The file of the function that a call by this name reaches; None: no file."""
    process = ctypes.CDLL(None)
    found = _Symbol()
    try:
        place = ctypes.cast(getattr(process, function), ctypes.c_void_p)
    except AttributeError:
        return None
    if process.dladdr(place, ctypes.byref(found)) == 0 or found.file is None:
        return None
    return os.path.realpath(os.fsdecode(found.file))


def report_calls_taken() -> None:
    """Says so if a library has put its own cudaMalloc before the CUDA runtime's.

    Such a library (LD_PRELOAD) manages, pauses or limits what PyTorch takes by that
    call. oomph does not call it, so the library would do nothing, and say nothing.
    """
    taken, runtime = _library_of("cudaMalloc"), _library_of("cudaRuntimeGetVersion")
    if taken is not None and runtime is not None and taken != runtime:
        logger.warning(
            "%s intercepts cudaMalloc, perhaps by LD_PRELOAD: it sees nothing of "
            "PyTorch's memory, because oomph maps the driver's pages instead",
            taken,
        )


def report_one_memory() -> None:
    """Says which GPUs have no memory of their own. CUDA is initialised."""
    import torch

    for index in range(torch.cuda.device_count()):
        if _C.shares_memory(index):
            logger.warning(
                "GPU %d has no memory of its own but uses the CPU's: nothing is "
                "offloaded there, as that would free nothing "
                "(OOMPH_CONF=recompute:always makes room by running calls again)",
                index,
            )
