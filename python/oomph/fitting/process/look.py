"""How many steps of a script are enough to see its peak.

Six are where each is like the others. Where batches get longer, another optimizer takes
over, or each tenth step is followed by an evaluation, they are not: so one run looks
on, for as long as those took, and the others end with the step that had the peak.
Where the peak rises meanwhile it looks on as long again, as a curriculum may go on,
and longer where steps differ.

Where steps differ they end with the last one: an allocator that has blocks of other
sizes may need most after that peak, in pieces that do not fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

_MORE_S = 2.0, 10.0  # to look on for from the last peak, at least and at most
_MOST_S = 30.0  # in all
_MORE = 0.01  # of what is held at the peak: less is none
_ALIKE = 0.02  # of what a step needs: more than that tells two apart


def differ(steps_bytes: Sequence[int]) -> bool:
    """Whether steps need different memory, but for the first, which makes states."""
    later = steps_bytes[1:]
    return bool(later) and max(later) > (1 + _ALIKE) * min(later)


class Look:
    """Sees the peak rise.

    Args:
        goes_on: Whether to look on once enough steps were seen.
        for_ever: Whether to do so up to the script's end.

    Attributes:
        enough: The step with which the peak came; 0: none was looked at.
        until: The step with which other runs end.
        seconds: How long the run had taken until then.
        trace: What was asked for until then.
    """

    def __init__(self, goes_on: bool, for_ever: bool = False) -> None:
        self.enough, self.until, self.seconds = 0, 0, 0.0
        self.trace: list[int] = []
        self._goes_on, self._for_ever = goes_on, for_ever
        self._began = time.monotonic()
        self._peak_bytes = self._first = self._end = 0.0

    def elapsed_s(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - self._began

    def goes_on(
        self,
        steps_bytes: Sequence[int],
        peak_bytes: int,
        trace: Callable[[], list[int]],
    ) -> bool:
        """A step has ended, and enough were seen; gives whether to see more.

        Args:
            steps_bytes: What each has needed.
            peak_bytes: Of all until now.
            trace: Gives what was asked for until now.
        """
        now, count = time.monotonic(), len(steps_bytes)
        if not self.enough:
            self._first = now
        has_peak = not self.enough or peak_bytes > (1 + _MORE) * self._peak_bytes
        if has_peak:
            self.enough, self._peak_bytes = count, peak_bytes
            least, most = _MORE_S
            more = most if differ(steps_bytes) else max(least, now - self._began)
            self._end = min(now + min(more, most), self._first + _MOST_S)
        if has_peak or differ(steps_bytes):
            self.until, self.trace = count, trace()
            self.seconds = self.elapsed_s()
        return self._for_ever or (self._goes_on and now < self._end)

    def step_of(self, peak_bytes: int) -> int:
        """The step with which a peak came; 0: it came after them all."""
        return self.enough if peak_bytes <= (1 + _MORE) * self._peak_bytes else 0
