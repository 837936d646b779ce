"""What steps under a plan take, and how its record is set right by that."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from oomph.recompute import timeline
from oomph.steps import times

_MEASURED = 3  # ends of steps: the first step under a plan still meets what was before
_ERROR = 0.03  # of a step's time that is worth a correction,
_CORRECTIONS = 4  # as long as there were fewer
_WORSE = 0.01  # by which a step under a corrected plan is too long
_LEAST_FACTOR = 0.1  # of the time that backward was said to take


class Correction:
    """The times of steps under the plans of one record.

    Attributes:
        step_ms: Of a step under the plan; 0: not known yet.
    """

    def __init__(self) -> None:
        self.step_ms = 0.0
        self._ends: list[Any] = []  # of steps in a row under the plan
        self._count = 0  # of corrections
        # The shortest step that was measured in this size, and its plan.
        self._best: tuple[float, timeline.Plan | None] = math.inf, None

    def restart(self) -> None:
        """Another plan is followed."""
        self.step_ms = 0.0
        self._ends.clear()

    def forget_best(self) -> None:
        """Steps have another size."""
        self._best = math.inf, None

    def measure(self, device: int) -> None:
        """Learns the time of the last step under the plan that the device has ended."""
        if len(self._ends) < _MEASURED:
            self._ends.append(times.mark(device))
        elif times.has_passed(self._ends[-1]):
            self.step_ms = self._ends[-2].elapsed_time(self._ends[-1])
            self._ends[:] = [times.mark(device)]

    def better(self, plan: timeline.Plan) -> timeline.Plan | None:
        """The plan of a shorter step, if the last correction was none.

        Args:
            plan: What is followed.
        """
        best_ms, best = self._best
        if 0 < self.step_ms <= best_ms:
            self._best = self.step_ms, plan
        elif self.step_ms > (1 + _WORSE) * best_ms and best != plan:
            self._count = _CORRECTIONS
            return best
        return None

    def correct(
        self, record: timeline.Record, expected_ms: float, size: float
    ) -> timeline.Record | None:
        """Sets a record right where a step takes another time than it says.

        Steps in which calls were watched and tried may have used host pages, or waited
        where nothing shows it: in backward, most of them.

        Args:
            record: It.
            expected_ms: The time that a step should take,
            size: that is so many times as large as that of the record.

        Returns:
            The record set right; None: it is.
        """
        more_ms = self.step_ms - expected_ms
        if self.step_ms == 0 or abs(more_ms) < _ERROR * self.step_ms:
            return None
        if self._count == _CORRECTIONS:
            return None
        self._count += 1
        parts = record.segments
        backward_ms = sum(s.backward_ms for s in parts) * size
        factor = max(1 + more_ms / max(backward_ms, 1e-9), _LEAST_FACTOR)
        segments = [replace(s, backward_ms=s.backward_ms * factor) for s in parts]
        return replace(record, segments=segments)
