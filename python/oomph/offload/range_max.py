"""How much was in use at each place of a step."""

from __future__ import annotations

from collections import deque


class RangeMax:
    """By place: the most bytes in use there, as one step showed.

    Backward asks for the most of ranges of which both ends go down, again and again.
    So the last range is kept, with those of its places at which all that came before
    in it is less: each place is looked at once in a backward.

    Example:
        >>> profile = RangeMax()
        >>> profile.note(3, 100)
        >>> profile.note(5, 80)
        >>> profile.most(0, 6), profile.most(4, 6), profile.most(6, 9)
        (100, 80, None)
    """

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._first = self._end = 0  # the range asked for last
        self._highest: deque[tuple[int, int]] = deque()  # its last place first

    def note(self, place: int, size_bytes: int) -> None:
        """So much was in use at a place."""
        self._bytes[place] = max(self._bytes.get(place, 0), size_bytes)
        self._first = self._end = 0
        self._highest.clear()

    def most(self, first: int, end: int) -> int | None:
        """The most bytes from ``first`` to before ``end``; None: nothing is known."""
        if first > self._first or end > self._end:
            self._first = end
            self._highest.clear()
        self._end = end
        for place in range(min(self._first, end) - 1, first - 1, -1):
            size_bytes = self._bytes.get(place)
            if size_bytes is None:
                continue
            while self._highest and self._highest[-1][1] <= size_bytes:
                self._highest.pop()
            self._highest.append((place, size_bytes))
        self._first = first
        while self._highest and self._highest[0][0] >= end:
            self._highest.popleft()
        return self._highest[0][1] if self._highest else None
