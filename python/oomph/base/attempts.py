"""What oomph tries by itself, and does without where there is no memory for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_here = threading.local()


@contextlib.contextmanager
def attempt() -> Iterator[None]:
    """Within it this thread's out-of-memory errors are oomph's own business.

    They explain nothing, which would take a second, and are not the last of the
    program's.
    """
    before = is_attempt()
    _here.tries = True
    try:
        yield
    finally:
        _here.tries = before


def is_attempt() -> bool:
    """Whether this thread is within one."""
    return getattr(_here, "tries", False)
