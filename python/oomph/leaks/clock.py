"""Rounds of a program that has neither steps nor calls of a model: equal times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_ROUND_S = 0.25


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
        """Since it was made."""
        return time.monotonic() - self._began

    def _run(self) -> None:
        while not self._stopped.wait(_ROUND_S) and self._tick():
            pass
