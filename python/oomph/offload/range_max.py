"""How much was in use at each place of a step."""

from __future__ import annotations


class RangeMax:
    """By place: the most bytes in use there, as one step showed.

    Of what was noted, rows of pairs are made when somebody asks: of places, of pairs of
    places, and so on. Any range then consists of at most two entries of each row, in
    whatever order backward asks.

    Example:
        >>> profile = RangeMax()
        >>> profile.note(3, 100)
        >>> profile.note(5, 80)
        >>> profile.most(0, 6), profile.most(4, 6), profile.most(6, 9)
        (100, 80, None)
    """

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._rows: list[list[int]] = []  # -1: nothing is known

    def note(self, place: int, size_bytes: int) -> None:
        """So much was in use at a place, from 0 on."""
        self._bytes[place] = max(self._bytes.get(place, 0), size_bytes)
        self._rows.clear()

    def most(self, first: int, end: int) -> int | None:
        """The most bytes from ``first`` to before ``end``; None: nothing is known."""
        if not self._rows:
            self._make_rows()
        first, end = max(first, 0), min(end, len(self._rows[0]))
        found = -1
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
        return found if found >= 0 else None

    def _make_rows(self) -> None:
        last = max(self._bytes, default=0)
        row = [self._bytes.get(place, -1) for place in range(last + 1)]
        self._rows.append(row)
        while len(row) > 1:
            if len(row) % 2:
                row.append(-1)
            row = list(map(max, row[::2], row[1::2]))
            self._rows.append(row)
