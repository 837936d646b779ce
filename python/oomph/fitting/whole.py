"""The script to its end, beside the runs that answer, to see what it needs late."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from oomph.fitting.measuring import Place, Script, measure
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from oomph.fitting.turns import Turns

_MORE = 0.01  # of what the first steps need: less is none


class Whole:
    """A run of a script to its end, or until it is closed.

    It gives way to a run that has to be alone.

    Args:
        launcher: What starts it.
        script: What is run.
        place: Where to.
        turns: Of the other runs.
        first: What its first steps have shown.
    """

    def __init__(
        self,
        launcher: Launcher,
        script: Script,
        place: Place,
        turns: Turns,
        first: Record,
    ) -> None:
        self._first, self._turns = first, turns
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._run, launcher, script, place)

    def _run(self, launcher: Launcher, script: Script, place: Place) -> Record:
        def stop() -> bool:
            return self._stopped.is_set() or self._turns.is_one_alone()

        with self._turns.beside():
            return measure(launcher, script, place, stop)

    def close(self) -> None:
        """Ends it, and waits for that."""
        self._stopped.set()
        self._pool.shutdown()

    def result(self, seconds: float) -> Record | None:
        """What it has shown; None: no more than the first steps did.

        Args:
            seconds: To wait for its end; then it is ended.
        """
        try:
            record = self._future.result(seconds)
        except NotYet:
            self._stopped.set()
            record = self._future.result()
        steps, first = len(record.steps_bytes), len(self._first.steps_bytes)
        return record if record.ended or steps > first else None

    def needs_more(self, record: Record) -> bool:
        """Whether the script needs more after its first steps."""
        first = self._first
        return (
            record.allocated_bytes > (1 + _MORE) * first.allocated_bytes
            or record.reserved_bytes > (1 + _MORE) * first.reserved_bytes
        )
