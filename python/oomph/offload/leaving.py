"""Storages that were sent to the host and that the device still has.

As a rule only the latest few: the program lets go of what it saved soon after. But it
may hold all, as a loop does that collects its states. So the latest are looked at each
time, and what has been there for longer a few at a time, in turn.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

from oomph.offload.transfer import OffloadedStorage

_PASSING_SAVES = 16  # so many later, what is still there was not on its way out
_IN_TURN = 4  # of those that are looked at each time

_Entry = tuple[weakref.ref[OffloadedStorage], int, int]  # its place, and its bytes


class Leaving:
    """What was sent and is not known to be gone.

    Attributes:
        bytes: Of all of it.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._latest: deque[_Entry] = deque()
        self._held: deque[_Entry] = deque()
        self._unreported: list[weakref.ref[OffloadedStorage]] = []

    def add(self, offloaded: OffloadedStorage) -> None:
        """It was sent just now."""
        entry = weakref.ref(offloaded), offloaded.sequence, offloaded.bytes
        self._latest.append(entry)
        self.bytes += offloaded.bytes

    def look(
        self, is_there: Callable[[OffloadedStorage], bool], at_all: bool = False
    ) -> None:
        """Forgets what is there no more.

        Args:
            is_there: Whether the device still has it.
            at_all: Whether to look at all that is held.
        """
        some = len(self._held) if at_all else min(len(self._held), _IN_TURN)
        for entries, count in (self._latest, len(self._latest)), (self._held, some):
            for _ in range(count):
                entry = entries.popleft()
                offloaded = entry[0]()
                if offloaded is not None and is_there(offloaded):
                    entries.append(entry)
                else:
                    self.bytes -= entry[2]

    def age(self, now: int) -> None:
        """What was sent long before this place is held by somebody."""
        while self._latest and self._latest[0][1] < now - _PASSING_SAVES:
            entry = self._latest.popleft()
            self._held.append(entry)
            self._unreported.append(entry[0])

    def take_held(self) -> list[OffloadedStorage]:
        """What is held and was not taken before, but for what has ended."""
        taken, self._unreported = self._unreported, []
        return [found for reference in taken if (found := reference()) is not None]
