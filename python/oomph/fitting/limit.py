"""How long a question may take: what is not known by then is said, and not run."""

from __future__ import annotations

import threading
import time

WITHIN_S = 300.0  # if nothing is said
PATIENCE = 4  # times as long as the first run, which has no limit


class Late(Exception):
    """A run was not made, or was ended, as the time for the question was up."""


class Limit:
    """Ends the runs of a question: once its time is up, or at an error.

    The first run shows whether there is anything to say. So it is not ended, and the
    time counts from its end on.

    Args:
        within_s: For the whole question; None: 300 seconds, or four times as long as
            the first run if that is longer. Infinite: there is no limit.
    """

    def __init__(self, within_s: float | None = float("inf")) -> None:
        self._within_s, self._began = within_s, time.monotonic()
        self._end = float("inf")
        self._has_begun = False
        self._stopped = threading.Event()

    def begin(self) -> None:
        """The first run has ended."""
        if not self._has_begun:
            self._has_begun = True
            took = time.monotonic() - self._began
            self._end = self._began + (
                max(WITHIN_S, PATIENCE * took)
                if self._within_s is None
                else self._within_s
            )

    def stop(self) -> None:
        """Ends what runs: nobody waits for it any more."""
        self._stopped.set()

    def elapsed_s(self) -> float:
        """For how long the question has been going on."""
        return time.monotonic() - self._began

    def left_s(self) -> float:
        """How long it may still go on."""
        return max(0.0, self._end - time.monotonic())

    def is_late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._end

    def is_set(self) -> bool:
        """Whether what runs is to end."""
        return self._stopped.is_set() or self.is_late()
