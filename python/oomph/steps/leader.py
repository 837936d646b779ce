"""Which of several optimizers ends the steps of a training loop.

A step of oomph is one round of the loop: rounds are alike, so that one is like the
next. Where a round has several optimizers, such as those of a generator and of what
judges it, the one that steps most seldom leads, and ends it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

_OTHERS_MAX = 16  # steps of others after which another optimizer leads


class StepLeader(threading.local):
    """The leader of each thread's loop.

    Example:
        >>> leader = StepLeader()
        >>> [leader.end_with(x) for x in (judge, judge, maker, judge, judge, maker)]
        [True, True, True, False, False, True]
    """

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        # Steps taken, in the order in which they were first seen; by identity, as the
        # hash of a metric changes with what it has seen.
        self._steps: Any = WeakIdKeyDictionary()
        self._leader: weakref.ref[Any] | None = None
        self._others = 0  # steps since the leader's

    def end_with(self, optimizer: Any) -> bool:
        """Whether a step of this optimizer ends a step of the loop."""
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        leader = self._leader() if self._leader is not None else None
        if leader is not None and leader is not optimizer:
            self._others += 1
            if self._others > _OTHERS_MAX:
                del self._steps[leader]
            elif min(self._steps, key=self._steps.__getitem__) is not optimizer:
                return False
        self._leader = weakref.ref(optimizer)
        self._others = 0
        return True
