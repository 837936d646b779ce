"""Has the larger batches of an epoch come first, once a script's first steps were seen.

Which those are, :mod:`oomph.fitting.process.ahead` says. One run looks; the others are
told, so that each trains on the same.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

from oomph.fitting.process import ahead
from oomph.fitting.process.ahead import Plan, Sizes
from oomph.fitting.process.loaders import Loaders

_LOOK_S = 0.5, 4.0  # to look at sizes for, at least and at most
_STEPS_S = 12.0  # of a core, to run larger batches for, by what the first steps took
_MOST_S = 60.0  # however long they take
_LATE = 2  # steps after which a batch is used that loops fetch ahead


class LargerFirst:
    """What the loader of a script has still to give, and in which order.

    Args:
        loaders: Those of the script.

    Attributes:
        plan: What was seen, or what the run is told.
        step: After which step the order changes; 0: it has not.
    """

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = loaders
        self.plan, self.step = Plan(), 0
        self._looks = False
        self._seen: weakref.WeakKeyDictionary[Any, list[Sizes]] = (
            weakref.WeakKeyDictionary()
        )
        self._count = 0  # of steps
        self._began = 0.0, 0.0  # when the first had ended, and by the clock of the CPU
        self._in_order: weakref.ref[Any] | None = None
        self._given = 0  # by that one, once all of the first are
        self._late, self._end = 0, 0.0

    def place(self, looks: bool, step: int, first: Sequence[Any]) -> None:
        """Says what this run is to do.

        Args:
            looks: Whether it looks.
            step: Else the step after which another run chose an order; 0: none did.
            first: Indices of the batches that come then.
        """
        self._looks, self.step, self.plan = looks, step, Plan(first)

    def note(self, iterator: Any, batch: Any) -> None:
        """An iterator has given a batch."""
        if self._looks and not self.step:
            ahead.note(batch, self._seen.setdefault(iterator, []))

    def note_step(self) -> None:
        """A step has ended."""
        self._count += 1
        if self._count == 1:
            self._began = time.monotonic(), time.process_time()
        if self._count == self.step and not self._looks:
            self._reorder()
        source = None if self._in_order is None else self._in_order()
        if source is None or source._num_yielded >= self._given:
            self._late -= 1

    def look(self) -> None:
        """Looks, if it is this run's to do so and has not been done."""
        if not self._looks or self.step or self._count < 2:
            return
        self.step = self._count
        took = time.monotonic() - self._began[0]
        took_of_core = time.process_time() - self._began[1]
        step_s = max(took_of_core, took / 2) / (self._count - 1)  # others run beside
        least, most = _LOOK_S
        for source in self._sources():
            self.plan = ahead.look(
                source,
                self._seen.get(source, []),
                min(max(least, took / 2), most),
                step_s,
                _STEPS_S,
            )
        self._end = time.monotonic() + _MOST_S
        self._reorder()

    def _sources(self) -> list[Any]:
        """What the last step had its batches of; none if that is not one."""
        found = list(self._loaders.used)
        return found if len(found) == 1 else []

    def _reorder(self) -> None:
        for source in self._sources() if self.plan.first else ():
            self._in_order = weakref.ref(source)
            self._given = ahead.give_first(source, self.plan.first)
            self._late = _LATE

    def is_all_used(self) -> bool:
        """Whether none of the first batches is to come, or they take too long."""
        return self._late <= 0 or not self._looks or time.monotonic() > self._end
