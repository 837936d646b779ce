"""How many steps of a script are enough to see its peak.

Six are where each is like the others. Where batches get longer, another optimizer takes
over, or each tenth step is followed by an evaluation, they are not: so one run looks
on, for as long as those took, and the others end with the step that had the peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_MORE_S = 2.0, 10.0  # to look on for, at least and at most
_MORE = 0.01  # of what is held at the peak: less is none


class Look:
    """Sees the peak rise.

    Args:
        goes_on: Whether to look on once enough steps were seen.

    Attributes:
        enough: The step with which the peak came; 0: none was looked at.
        seconds: How long the run had taken until then.
        trace: What was asked for until then.
    """

    def __init__(self, goes_on: bool) -> None:
        self.enough, self.seconds = 0, 0.0
        self.trace: list[int] = []
        self._goes_on, self._began = goes_on, time.monotonic()
        self._peak_bytes = self._end = 0.0

    def elapsed_s(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - self._began

    def goes_on(
        self, count: int, peak_bytes: int, trace: Callable[[], list[int]]
    ) -> bool:
        """A step has ended, and enough were seen; gives whether to see more.

        Args:
            count: How many have.
            peak_bytes: Of all until now.
            trace: Gives what was asked for until now.
        """
        now = time.monotonic()
        if not self.enough:
            least, most = _MORE_S
            self._end = now + min(max(least, now - self._began), most)
        if not self.enough or peak_bytes > (1 + _MORE) * self._peak_bytes:
            self.enough, self._peak_bytes, self.trace = count, peak_bytes, trace()
            self.seconds = self.elapsed_s()
        return self._goes_on and now < self._end
