"""What oomph tries by itself, and does without where there is no memory for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from oomph import _C


@contextlib.contextmanager
def attempt() -> Iterator[None]:
    """Within it this thread's out-of-memory errors are oomph's own business.

    They explain nothing, which would take a second, and are not the last of the
    program's; Python's collector, which takes a tenth, does not run before each.
    """
    before = _C.set_attempt(True)
    try:
        yield
    finally:
        _C.set_attempt(before)
