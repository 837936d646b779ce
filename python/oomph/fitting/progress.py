"""What is shown of a question while it is answered."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_QUIET_S = 10.0  # between two lines of what runs, where nobody may look

Say = Callable[[str], None]


class Progress:
    """Says what runs, and what is known so far: an interrupted search was not in vain.

    Args:
        runs: Called with what is about to run.
        known: Called with what has been found out.
    """

    def __init__(self, runs: Say, known: Say) -> None:
        self.runs, self.known = runs, known

    def of(self, part: str) -> Progress:
        """The same of a part of the question, which stands before each line."""
        return Progress(
            lambda what: self.runs(f"{part}: {what}"),
            lambda what: self.known(f"{part}: {what}"),
        )


def silent() -> Progress:
    """Says nothing."""
    return Progress(lambda _: None, lambda _: None)


def to_terminal() -> Progress:
    """Writes to the standard error; where that is no terminal, of runs but a few."""
    every_s = 0.0 if sys.stderr.isatty() else _QUIET_S
    said = time.monotonic() - every_s  # the first is said at once

    def say(what: str) -> None:
        sys.stderr.write(f"oomph: {what}\n")  # at once, as several threads say
        sys.stderr.flush()

    def say_at_times(what: str) -> None:
        nonlocal said
        if time.monotonic() - said >= every_s:
            said = time.monotonic()
            say(what)

    return Progress(say_at_times, say)
