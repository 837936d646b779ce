"""Which of several optimizers ends the turns of a training loop.

A step of oomph is one turn of the loop: turns are alike, so that one tells of the next.
Where a turn has several optimizers, such as those of a generator and of what judges it,
the one that steps most seldom ends it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

_OTHERS_MAX = 16  # steps of others after which another optimizer ends turns


class Turns(threading.local):
    """The turns of each thread's loop.

    Example:
        >>> turns = Turns()
        >>> [turns.end_with(x) for x in (judge, judge, maker, judge, judge, maker)]
        [True, True, True, False, False, True]
    """

    def __init__(self) -> None:
        # Steps taken, in the order in which they were first seen.
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._leader: weakref.ref[Any] | None = None
        self._others = 0  # steps since the leader's

    def end_with(self, source: Any, by_word: bool = False) -> bool:
        """Whether a step of this optimizer ends a turn.

        Args:
            source: The optimizer, or what stands for it.
            by_word: The program says so: it leads from now on.
        """
        self._steps[source] = self._steps.get(source, 0) + 1
        leader = self._leader() if self._leader is not None else None
        if leader is not None and leader is not source:
            self._others += 1
            is_gone = self._others > _OTHERS_MAX
            if is_gone:
                del self._steps[leader]
            elif not by_word and not self._is_rarest(source, leader):
                return False
        if leader is not source:
            self._leader = weakref.ref(source)
        self._others = 0
        return True

    def _is_rarest(self, source: Any, leader: Any) -> bool:
        """Whether it steps more seldom than all others; never if the word leads."""
        if isinstance(leader, Word):
            return False
        return min(self._steps, key=self._steps.__getitem__) is source


class Word:
    """Stands for a program that says itself where its turns end."""
