"""The most of any range of a row of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest


class RangeMax:
    """The most of any range.

    Rows of pairs are made: of numbers, of pairs of numbers, and so on. Any range then
    consists of at most two entries of each row.

    Args:
        numbers: At least 0.

    Example:
        >>> row = RangeMax([10, 100, 80])
        >>> row.most(0, 3), row.most(2, 9), row.most(5, 9)
        (100, 80, 0)
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        row = list(numbers)
        self._rows = [row]
        while len(row) > 1:
            row = [max(a, b) for a, b in zip_longest(row[::2], row[1::2], fillvalue=0)]
            self._rows.append(row)

    def most(self, first: int, end: int) -> int:
        """The most from ``first`` to before ``end``; 0 if there are none."""
        first, end = max(first, 0), min(end, len(self._rows[0]))
        found = 0
        for row in self._rows:
            if first >= end:
                break
            if first % 2:
                found = max(found, row[first])
                first += 1
            if end % 2:
                end -= 1
                found = max(found, row[end])
            first, end = first // 2, end // 2
        return found
