"""Which line of the program calls a simulated library, or stands still."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from oomph.simulate.driver import DRIVER, open_library


def connect(writer: int, main_line: Callable[[], tuple[str, bool]]) -> None:
    """Has the simulated libraries say which line of the program calls, or stands still.

    Args:
        writer: The address of a C function, as ``_C.line_writer()`` gives it.
        main_line: Gives the line that the main thread is at, and whether PyTorch works
            for it; called by a thread of NCCL.
    """
    driver = open_library(DRIVER, ctypes.RTLD_LOCAL)
    driver.oomph_sim_know_lines(ctypes.c_void_p(writer))
    driver.oomph_sim_know_place(_place_writer(main_line))


@functools.cache  # it lives as long as the library
def _place_writer(main_line: Callable[[], tuple[str, bool]]) -> Any:
    """A C function that says what `main_line` does, and how many ranks there are."""
    import torch.distributed as dist

    def write_place(text: int, size_bytes: int, world_size: Any) -> int:
        line, is_in_torch = main_line()
        written = line.encode()[: size_bytes - 1] + b"\0"
        ctypes.memmove(text, written, len(written))
        world_size[0] = dist.get_world_size() if dist.is_initialized() else 0
        return is_in_torch

    arguments = ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(write_place)
