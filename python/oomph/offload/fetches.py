"""Brings back what backward will use next, as far ahead as memory allows.

What was saved last is used first, so what lies just before the place that is used now
comes next. It may come as early as there is room for it beside all that the rest needs
until then, as the record of a step of the same kind says.

Fetching as early as there is room hides most of the way back; a fixed number of
storages ahead would hide less, or run out of memory. Each use in backward costs a
binary search and the most of a range of events, O(log n).
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Iterator
from operator import itemgetter

import torch

from oomph import _C
from oomph.base.attempts import attempt
from oomph.base.log import logger
from oomph.offload import transfer
from oomph.offload.kinds import StepPlan
from oomph.offload.recorder import Recorder
from oomph.offload.transfer import OffloadedStorage

_EARLY = 64  # of what came back early, until what was used is forgotten
_BLIND = 0.4  # share of the device left free by a fetch before a step was recorded


_Entry = tuple[int, weakref.ref[OffloadedStorage]]  # with its sequence


class Fetches:
    """What is away from a device, and its way back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._away: list[_Entry] = []
        self._early: list[_Entry] = []  # that came back ahead of need
        self._is_fetching = False  # some thread does, ahead of need

    def add(self, offloaded: OffloadedStorage) -> None:
        """It was sent; the caller holds ``transfer.lock``."""
        entry = offloaded.sequence, weakref.ref(offloaded)
        bisect.insort(self._away, entry, key=itemgetter(0))

    def away(self) -> Iterator[OffloadedStorage]:
        """What is away; the caller holds ``transfer.lock``."""
        for _, reference in self._away:
            offloaded = reference()
            if offloaded is not None and offloaded.is_away:
                yield offloaded

    def early(self) -> list[OffloadedStorage]:
        """What came back ahead of need; the caller holds ``transfer.lock``."""
        found = [(entry, entry[1]()) for entry in self._early]
        here = [(e, o) for e, o in found if o is not None and o.is_early]
        self._early = [entry for entry, _ in here]
        return [offloaded for _, offloaded in here]

    def ahead(self, sequence: int, plan: StepPlan, used: int, limit: int) -> None:
        """Fetches what will be used next.

        One thread at a time: what others come to use meanwhile they take themselves.

        Args:
            sequence: When what is used now was saved.
            plan: What is expected of the step.
            used: Bytes in use on the device.
            limit: To how many they may grow.
        """
        with transfer.lock:
            if self._is_fetching:
                return
            self._is_fetching = True
        try:
            while (found := self._next(sequence, plan, used, limit)) is not None:
                with attempt():
                    found.fetch()
                self._note_early(found)
                used += found.bytes
        except (torch.OutOfMemoryError, _C.DriverError) as error:
            logger.debug("nothing is fetched ahead now: %s", error)
        finally:
            self._is_fetching = False

    def _note_early(self, offloaded: OffloadedStorage) -> None:
        with transfer.lock:
            if len(self._early) > 2 * len(self._away) + _EARLY:
                self.early()  # forgets those that were used
            self._early.append((offloaded.sequence, weakref.ref(offloaded)))

    def _next(
        self, sequence: int, plan: StepPlan, used: int, limit: int
    ) -> OffloadedStorage | None:
        """The last that was saved before what is used now, if there is room for it."""
        with transfer.lock:
            end = bisect.bisect_left(self._away, sequence, key=itemgetter(0))
            while end > 0:
                end -= 1
                offloaded = self._away[end][1]()
                if offloaded is not None and offloaded.is_away:
                    more = offloaded.bytes + self._growth(
                        sequence, offloaded, plan, used
                    )
                    return offloaded if used + more <= limit else None
                del self._away[end]
            return None

    def _growth(
        self, sequence: int, offloaded: OffloadedStorage, plan: StepPlan, used: int
    ) -> int:
        """By how much the rest will grow from what is used now to a storage's use.

        Args:
            sequence: When what is used now was saved.
            offloaded: The storage.
            plan: What is expected of the step.
            used: Bytes in use on the device.
        """
        recorder = self._recorder
        now = plan.like.index.get((recorder.place_of(sequence), True))
        then = plan.like.index.get((recorder.save_of(offloaded)[0], True))
        if now is None or then is None:
            return int(recorder.capacity * _BLIND)
        most = plan.rest.most(now + 1, then + 1)
        used += recorder.start_host_bytes  # the record counts what lies there, too
        return max(most + recorder.link.restored_bytes - used, 0)
