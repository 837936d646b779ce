"""How much of a device is left free, as steps that fell short have taught.

A step never comes out exactly as planned. So a constant share stays free, and what a
step was short of is added, at most a fiftieth of the device at a time. After 64 steps
without a shortage a fiftieth less is tried; whenever such a trial fails, the wait
before the next doubles, so that trials get rare where they are in vain. What is missing
however much is left free, such as a block larger than the device, takes no room from
others for long. It costs a few sums for each step.
"""

from __future__ import annotations

EXTRA_SHARE = 50  # part of the device that is left free after a step that fell short
_SLACK = 0.005  # share of the device left free, as pages are not filled to the full
_SLACK_BYTES = 16 << 20  # and this beside
_FETCH_SLACK = 0.01  # share that is left free beside by what comes back ahead of need
_QUIET_STEPS = 64  # steps without a rescue after which less is left free
_FITTING_STEPS = 8  # steps that would have fitted, until a shortage is over,
_MOST_PATIENCE = 64  # and at most, where shortages came back
_SAME = 0.1  # by which what is missing may differ and be the same
_MOST_GROWTHS = 8  # after which as much is missing, until all of them were in vain


def slack_bytes(capacity: int) -> int:
    """What is always left free of so many bytes."""
    return int(capacity * _SLACK) + _SLACK_BYTES


class Headroom:
    """What a device leaves free beside.

    Attributes:
        extra_bytes: Beside what is missing.
        fetch_bytes: When something is fetched ahead of need.
    """

    def __init__(self, extra_bytes: int = 0, fetch_bytes: int = 0) -> None:
        self.extra_bytes = extra_bytes
        self.fetch_bytes = fetch_bytes
        self._quiet_steps = 0  # with a target and without a rescue
        self._patience = _QUIET_STEPS
        self._is_trying = False  # less has been left free since the last shortage
        self._missing_bytes = self._growths = 0  # by as much; how often it grew for it
        self._before = extra_bytes, fetch_bytes  # the first of these

    @classmethod
    def of_unknown(cls, capacity: int) -> Headroom:
        """What so many bytes leave free in a step that is expected, not recorded.

        As a call runs again, it needs for a while more than it has saved. So what comes
        back ahead of need leaves more.
        """
        most = capacity // EXTRA_SHARE
        return cls(most, 2 * most)

    def for_fetches(self, capacity: int) -> int:
        """What is left free of so many bytes by what comes back ahead of need."""
        return slack_bytes(capacity) + int(capacity * _FETCH_SLACK) + self.fetch_bytes

    def grow(self, extra_bytes: int, fetch_bytes: int, capacity: int) -> None:
        """So much was missing, of it so much while something was back."""
        if abs(extra_bytes - self._missing_bytes) > _SAME * self._missing_bytes:
            self._missing_bytes, self._growths = extra_bytes, 0
            self._before = self.extra_bytes, self.fetch_bytes
        self._growths += 1
        if self._growths > _MOST_GROWTHS:  # as much is missing as before the first
            if self._growths == _MOST_GROWTHS + 1:
                self.extra_bytes, self.fetch_bytes = self._before
            return
        most = capacity // EXTRA_SHARE
        self.extra_bytes += min(extra_bytes, most)
        self.fetch_bytes += min(fetch_bytes, most)

    def note_shortage(self) -> None:
        """A step fell short: if on trial, the next trial comes later."""
        if self._is_trying:
            self._patience *= 2
        self._quiet_steps, self._is_trying = 0, False

    def trust(self, capacity: int) -> None:
        """After many steps that were not short: leaves less free, for a trial."""
        if self.extra_bytes + self.fetch_bytes == 0:
            return
        self._quiet_steps += 1
        if self._quiet_steps >= self._patience:
            less = capacity // EXTRA_SHARE
            self.extra_bytes = max(self.extra_bytes - less, 0)
            self.fetch_bytes = max(self.fetch_bytes - less, 0)
            self._quiet_steps, self._is_trying = 0, True


class Shortage:
    """Whether a device is short of memory, now or not long ago.

    Args:
        is_on: Whether it is at first.

    Attributes:
        is_on: Whether it is: as long as that lasts something is planned.
    """

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._fitting_steps = 0
        self._patience = _FITTING_STEPS

    def end_step(self, is_short: bool) -> bool:
        """A step has ended. After steps that fitted it is over; more of them each time.

        Args:
            is_short: Whether the step would not have fitted.

        Returns:
            Whether it is over.
        """
        if is_short:
            if self._fitting_steps >= self._patience:
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._fitting_steps, self.is_on = 0, True
            return False
        self._fitting_steps += 1
        if self._fitting_steps < self._patience:
            return False
        self.is_on = False
        return True
