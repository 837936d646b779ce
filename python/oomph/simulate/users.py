"""Processes that a program starts, and that use the simulated GPU.

Who looks at the program alone does not see what they hold.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

VARIABLE = "OOMPH_SIMULATE_USERS"
"""Names a folder in which each such process makes a file."""
SUFFIX = ".user"  # of that file


def note(before_use: Callable[[Callable[[], None]], None]) -> None:
    """Has this process make its file once it uses a GPU, if that is asked for."""
    folder = os.environ.get(VARIABLE)
    if folder is not None:
        before_use(lambda: _make(Path(folder, f"{os.getpid()}{SUFFIX}")))


def _make(path: Path) -> None:
    with contextlib.suppress(OSError):  # who asked is gone
        path.touch()
