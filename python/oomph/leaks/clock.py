"""Rounds of a program that has neither steps nor calls of a model: times.

They are equal, but for the first, which are shorter: a program may take but a part of a
second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_FIRST_S, _ROUND_S = 0.01, 0.25
_PARTS = 16  # of the time since it began: so long is a round in between


class Clock:
    """Calls something again and again, in a thread of its own.

    Args:
        tick: What is called; whether it is to be called again.
    """

    def __init__(self, tick: Callable[[], bool]) -> None:
        self._tick = tick
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._ends: list[float] = []  # of rounds, in seconds since then

    def start(self) -> None:
        """Begins."""
        name = "oomph leaks"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends; what is being called comes to its end."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def begin_again(self) -> None:
        """What was until now does not count."""
        self._began = time.monotonic()
        self._ends.clear()

    def rate(self, first: int, last: int) -> float:
        """Rounds in a second, between the ends of two, which are counted from 1."""
        if not 0 < first < last <= len(self._ends):
            return len(self._ends) / self.seconds
        return (last - first) / (self._ends[last - 1] - self._ends[first - 1])

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s()):
            self._ends.append(self.seconds)
            if not self._tick():
                break

    def _pause_s(self) -> float:
        return min(max(_FIRST_S, self.seconds / _PARTS), _ROUND_S)
