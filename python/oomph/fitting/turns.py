"""Whether runs of a script can go on beside each other.

Some want a port for themselves, or a file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets several run at a time, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._is_alone = False

    @contextmanager
    def beside(self) -> Iterator[list[bool]]:
        """Waits while one is alone. Gives whether others ran, once it has ended."""
        has_others = [False]
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone)
            self._running += 1
            has_others[0] = self._running > 1
        try:
            yield has_others
        finally:
            with self._changed:
                has_others[0] |= self._running > 1
                self._running -= 1
                self._changed.notify_all()

    def is_one_alone(self) -> bool:
        """Whether one is alone, or waits to be."""
        return self._is_alone

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until nothing else runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone)
            self._is_alone = True
            self._changed.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
