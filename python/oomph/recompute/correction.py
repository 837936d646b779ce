"""What steps under a plan take, and how its record is set right by that.

The step in which calls were tried may have used host pages, which make all its parts
longer, each by another factor. Steps under a plan use none, or few. So after the first
of them, each is timed in its parts (forward, backward, what comes after), by five
events: forward, backward and rest of the record each get a factor of their own, where
they are wrong by 3 % of a step. At most four times; where steps get longer by that, the
best plan before is taken again, and nothing is corrected any more.
"""

from __future__ import annotations

import math
from collections import deque

from oomph.recompute import timeline
from oomph.recompute.stopwatch import Stopwatch, Times, Waits

_EARLY_STEPS = 1  # not measured: the first still meets what was before
_ERROR = 0.03  # of a step's time, in its parts, that is worth a correction,
_CORRECTIONS = 4  # as long as there were fewer
_WORSE = 0.01  # by which a step under a corrected plan is too long
_LEAST_FACTOR = 0.1  # of the time that a part was said to take


class Correction:
    """The times of steps under the plans of one record.

    Args:
        before_ms: Of what the record takes to be the rest, what came before forward.

    Attributes:
        step_ms: Of a step under the plan; 0: not known yet.
    """

    def __init__(self, before_ms: float = 0.0) -> None:
        self._before_ms = before_ms
        self.step_ms = 0.0
        self._times: Times | None = None  # of the same step
        self._early_steps = 0
        self._running: deque[tuple[Stopwatch, Waits]] = deque()  # on the device
        self._count = 0  # of corrections
        # The shortest step that was measured in this size, and its plan.
        self._best: tuple[float, timeline.Plan | None] = math.inf, None

    def restart(self) -> None:
        """Another plan is followed."""
        self.step_ms, self._times = 0.0, None
        self._early_steps = 0
        self._running.clear()

    def forget_best(self) -> None:
        """Steps have another size."""
        self._best = math.inf, None

    def measure(self, stopwatch: Stopwatch, waits: Waits) -> None:
        """A step under the plan ends; learns the times of those the device has ended.

        Args:
            stopwatch: Of the step.
            waits: Events before and after each of its waits for a copy.
        """
        if self._early_steps < _EARLY_STEPS:
            self._early_steps += 1
            return
        stopwatch.stop()
        self._running.append((stopwatch, waits))
        while self._running and self._running[0][0].has_passed():
            passed, waits = self._running.popleft()
            self._times = passed.measured((), (), waits)
            self.step_ms = passed.step_ms()

    def better(self, plan: timeline.Plan) -> timeline.Plan | None:
        """The plan of a shorter step, if the last correction was none.

        Args:
            plan: What is followed.
        """
        best_ms, best = self._best
        if 0 < self.step_ms <= best_ms:
            self._best = self.step_ms, plan
            return None
        is_worse = self.step_ms > (1 + _WORSE) * best_ms
        if best is None or not is_worse or best.does_the_same(plan):
            return None
        self._count = _CORRECTIONS
        return best

    def correct(
        self,
        record: timeline.Record,
        plan: timeline.Plan,
        size: float,
        link: timeline.Link,
    ) -> timeline.Record | None:
        """Sets a record right where parts of a step take another time than it says.

        The step in which calls were tried may have used host pages, which slow down
        all its parts. A step under a plan uses none, or few. Its forward may wait for
        room, though: so the parts of forward are never made longer.

        Args:
            record: It.
            plan: What the step followed,
            size: that is so many times as large as that of the record.
            link: Its speed.

        Returns:
            The record set right; None: it is.
        """
        spent = self._times
        if spent is None or self._count == _CORRECTIONS:
            return None
        forward_ms, backward_ms = record.columns.kernels_ms
        # Forward begins with the first call that is followed: here it may be a later
        # one than in the step that was recorded, which may have moved state before it.
        self._before_ms = min(self._before_ms, spent.before / size)
        forth_ms = (spent.before + sum(spent.forward)) / size - self._before_ms
        back_ms = sum(spent.backward) / size - plan.recompute_ms
        moved_ms = plan.state_bytes / min(link.out, link.back)
        rest_ms = self._before_ms + max(spent.after / size - moved_ms, 0.0)
        forth = _factor(forth_ms, forward_ms, 1.0)
        back = _factor(back_ms, backward_ms, math.inf)
        wrong_ms = abs(forth - 1) * forward_ms + abs(back - 1) * backward_ms
        wrong_ms += abs(rest_ms - record.rest_ms)
        if size * wrong_ms < _ERROR * self.step_ms:
            return None
        self._count += 1
        return record.rescaled(forth, back, rest_ms)


def _factor(ms: float, recorded_ms: float, most: float) -> float:
    if recorded_ms <= 0:
        return 1.0
    return min(max(ms / recorded_ms, _LEAST_FACTOR), most)
