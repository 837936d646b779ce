"""The data loaders of a script: sees their batches, and ends the epoch it trains in.

Once enough steps were seen, the data loaders that these had their batches of have none
left. So the script goes on as at the end of an epoch, and what follows is seen: it
evaluates, and trains again or ends. Loops over data that begin then end early, too.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

from oomph.fitting.process.record import BATCHES

_LEFT_OVER = 2  # steps that may come of batches from before


class Loaders:
    """The data loaders of a script.

    Attributes:
        are_ended: Whether those that were in use have no batch left.
        is_cut: Whether a loop that began then was ended early.
        used: The iterators that the last batches came from, up to the last step.
    """

    def __init__(self) -> None:
        self.are_ended = self.is_cut = False
        self.used: weakref.WeakSet[Any] = weakref.WeakSet()
        self._recent: weakref.WeakSet[Any] = weakref.WeakSet()  # since the last step
        self._ended: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._steps = 0  # since they are ended

    def follow(self, note: Callable[[Any, Any], None]) -> None:
        """Sees each batch from now on.

        Args:
            note: Is given the iterator that it comes from, and the batch.
        """
        iterator = dataloader._BaseDataLoaderIter
        give = iterator.__next__

        def next_batch(self_: Any) -> Any:
            if self.are_ended and self._is_through(self_):
                raise StopIteration
            batch = give(self_)
            self._recent.add(self_)
            note(self_, batch)
            return batch

        iterator.__next__ = next_batch  # type: ignore[assignment,method-assign]

    def _is_through(self, iterator: Any) -> bool:
        """Also of one that is kept for the next epoch, and counts from 0 again."""
        given = iterator._num_yielded
        if given >= self._ended.get(iterator, sys.maxsize):
            return True
        self.is_cut |= given >= BATCHES
        return bool(given >= BATCHES)

    def note_step(self) -> None:
        """A step has ended."""
        if len(self._recent) > 0:
            self.used, self._recent = self._recent, weakref.WeakSet()

    def end(self) -> bool:
        """Ends those in use; gives whether there are any."""
        if len(self.used) == 0:
            return False
        for iterator in self.used:
            self._ended[iterator] = iterator._num_yielded
        self.are_ended = True
        self._recent.clear()
        return True

    def is_next_epoch(self) -> bool:
        """Whether the step that has ended is one of batches that came since then."""
        self._steps += 1
        return len(self._recent) > 0 or self._steps > _LEFT_OVER
