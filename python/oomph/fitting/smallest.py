"""The smallest card on which a script fits."""

from __future__ import annotations

from dataclasses import dataclass

from oomph import simulate
from oomph.fitting.cards import Target, of_size
from oomph.fitting.limit import Late
from oomph.fitting.measuring import Way
from oomph.fitting.runs import PAGE_BYTES, RESERVE_BYTES, Runs

_PARTS, _RESCUE_PARTS = 128, 8  # of what it needs: so exact is the smallest card


@dataclass(frozen=True)
class Smallest:
    """The memory of the smallest card.

    Attributes:
        size_bytes: It fits on one of so many bytes; None: on none that was run.
        is_known: Whether there is no smaller one; else the time was up before.
    """

    size_bytes: int | None
    is_known: bool = True


def smallest(runs: Runs, card: Target, way: Way, least: int | None = None) -> Smallest:
    """The memory of the smallest card on which the script fits, by runs on cards.

    Args:
        runs: Of the script.
        card: What the card is otherwise.
        way: Who gives out its memory.
        least: A size in bytes below which there is none; None: that is not known.

    Returns:
        Bytes, on which it fits, and at most one part in 128 more than it must be; with
        the rescue, whose runs take longer, one in 8. None: it does not fit a card of
        all that it takes without a limit (or this card, where it asks how much is
        free), or allocates nothing.
    """
    search = _Search(runs, card, way, least)
    try:
        return Smallest(search.run())
    except Late:
        return Smallest(search.found, False)


class _Search:
    """Looks for it; has what was found so far."""

    def __init__(self, runs: Runs, card: Target, way: Way, least: int | None) -> None:
        self.found: int | None = None
        self._runs, self._card, self._way, self._least = runs, card, way, least

    def run(self) -> int | None:
        """As :func:`smallest`."""
        runs, card, way = self._runs, self._card, self._way
        is_rescue = way is Way.RESCUE
        roomy = runs.roomy(card, Way.OOMPH if is_rescue else way)
        if not roomy.allocated_bytes:
            return None
        high = roomy.needed_bytes + (RESERVE_BYTES if is_rescue else 0)
        needs_less = is_rescue or roomy.asks_size or runs.goes_on()
        low = roomy.other_bytes + (0 if needs_less else roomy.allocated_bytes)
        parts = _RESCUE_PARTS if is_rescue else _PARTS
        if roomy.asks_size:  # what it takes without a limit says nothing
            high = min(high, card.memory_bytes)
        whole = roomy.needed_bytes
        if self._least is not None and self._least > low:
            low, high = self._least, max(self._least, high)
            if self._fits(low):
                return low
        while not self._fits(high):
            if not roomy.asks_size or high >= card.memory_bytes:
                return None
            low, high = high, min(2 * high, card.memory_bytes)

        def part() -> int:
            return max(2 * PAGE_BYTES, (high if roomy.asks_size else whole) // parts)

        while high - low > part():
            middle = (low + high) // 2 // PAGE_BYTES * PAGE_BYTES
            if self._fits(middle):
                high = middle
            else:
                low = middle
        return high

    def _fits(self, size: int) -> bool:
        try:
            fits = self._runs.answer(of_size(self._card, size), self._way).fits
        except simulate.SimulationError:  # no room for CUDA's context
            return False
        if fits:
            self.found = size
        return fits
