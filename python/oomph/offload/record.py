"""What one step showed of a device.

It is a list of events in the order of time, each with the most bytes in use since the
one before, as if nothing had been sent. What a step would need in another size, with
other state or if calls ran again is computed from that, in one pass over the events;
the most between two events takes O(log n). So no step is run to see what it would be.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from oomph.offload.sends import LEAVES, Save, Stay


class Event(NamedTuple):
    """A storage is saved, or used.

    Attributes:
        place: Of the tensor that was the first to save it, from the step's first.
        is_use: Whether it is used.
        need_bytes: Most bytes of blocks since the event before, on either side, as if
            nothing had been sent.
        device_need_bytes: Of these, most but for blocks that fell back to the host.
    """

    place: int
    is_use: bool
    need_bytes: int
    device_need_bytes: int


@dataclass
class Step:
    """What one step showed of a device."""

    first: int = 0  # sequence of the first tensor that it saved
    need_bytes: int = 0  # most bytes of blocks, on either side, before the optimizer
    optimizer_bytes: int = 0  # most while it worked
    temporary_bytes: int = 0  # of these, what it had for itself, and gave back
    away_bytes: int = 0  # most that was away at one time
    sent_bytes: int = 0
    late_bytes: int = 0  # of what left only as memory had run out
    fetched_bytes: int = 0
    waited_ms: float = 0.0  # as far as it was known when the step ended
    host_bytes: int = 0  # most bytes of blocks on the host
    host_growth: int = 0  # by which they grew before the optimizer,
    fetch_growth: int = 0  # and while something was back ahead of need
    # What had been sent long before they grew, and others held: it took the room.
    held: set[Save] = field(default_factory=set)
    state_host_bytes: int = 0  # of the optimizers' state, on the host at its end
    state_bytes: int = 0  # of all of it; 0: nothing was on the host
    born_bytes: int = 0  # that the optimizer made and kept, such as its state
    events: list[Event] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)  # that may leave, each once
    same: dict[int, int] = field(default_factory=dict)  # places of it, to the first

    @cached_property
    def index(self) -> dict[tuple[int, bool], int]:
        """The first event of each place and kind."""
        found: dict[tuple[int, bool], int] = {}
        for i, event in enumerate(self.events):
            found.setdefault((event.place, event.is_use), i)
        return found

    @cached_property
    def _saved(self) -> tuple[list[int], list[int]]:
        """Places in order, and bytes saved before each, and in all."""
        saves = sorted(self.saves)
        before = accumulate((size for _, size in saves), initial=0)
        return [place for place, _ in saves], list(before)

    @property
    def total_bytes(self) -> int:
        """Bytes of all that it saved."""
        return self._saved[1][-1]

    def saved_before(self, place: int) -> int:
        """Bytes of what it saved before a place."""
        places, before = self._saved
        return before[bisect.bisect_left(places, place)]

    def needs(self, *, on_device: bool = False, factor: float = 1.0) -> list[int]:
        """Most bytes of blocks before each event, as if nothing had been sent.

        Args:
            on_device: But for those that fell back to the host.
            factor: By how much larger all is that it saves. If it is larger, so is the
                rest beyond what was there when it began; if smaller, only what it saves
                is for certain.
        """
        needs = [
            e.device_need_bytes if on_device else e.need_bytes for e in self.events
        ]
        if factor == 1 or not needs:
            return needs
        if factor > 1:
            base = needs[0]
            return [base + int(factor * (need - base)) for need in needs]
        lives = [0] * (len(needs) + 1)
        for stay in self.stays(self.saves):
            lives[stay.first + 1] += stay.bytes
            lives[stay.last] -= stay.bytes
        live = accumulate(lives)
        return [
            need - int((1 - factor) * max(n, 0))
            for need, n in zip(needs, live, strict=False)
        ]

    def stays(self, saves: list[Save]) -> list[Stay]:
        """From when to when these lie on the device unused."""
        index, end = self.index, len(self.events)
        return [
            Stay(index[place, False], index.get((place, True), end), size)
            for place, size in saves
        ]

    def without(self, spans: list[tuple[int, int, int]]) -> Step:
        """The step as it would be if calls ran again.

        Args:
            spans: Of each call its first place, the place after its last, and the bytes
                that it frees from there to its backward.
        """
        skipped = {place for first, end, _ in spans for place in range(first, end)}
        freed = [0] * (len(self.events) + 1)
        used: dict[int, int] = {}  # places that are skipped, and when they are used
        saved: list[tuple[int, int]] = []  # places, and when they are saved
        for i, event in enumerate(self.events):
            if not event.is_use:
                saved.append((event.place, i))
            elif event.place in skipped:
                used.setdefault(event.place, i)
        saved.sort()
        for first, end, size_bytes in spans:
            after = bisect.bisect_left(saved, (end, 0))
            last = min((used[p] for p in range(first, end) if p in used), default=-1)
            start = saved[after][1] if after < len(saved) else len(self.events)
            if start < last:
                freed[start] += size_bytes
                freed[last + 1] -= size_bytes
        saves = [save for save in self.saves if save[0] not in skipped]
        return replace(self, events=self._lowered(accumulate(freed)), saves=saves)

    def reachable(
        self, limit_bytes: float, again: Collection[int] = frozenset()
    ) -> Step:
        """The step without what is on the host whatever leaves, or runs again.

        Where too much is in use though all has left that may, what is just saved lies
        on the host, at least in part, and kernels use it there. It needs no room then
        and is not sent; what it costs is in the times of a step that ran so. Of what is
        beside, such as gradients, the same is true, at that moment alone.

        Args:
            limit_bytes: What may be in use.
            again: Places that calls save which may run again: these may not be there.
        """
        stays = self.stays(self.saves)
        kept = (i for i, save in enumerate(self.saves) if save[0] not in again)
        saved_at = {stays[i].first: i for i in kept}
        count = len(self.events)
        gone, on_host = [0] * (count + LEAVES), [0] * (count + 1)  # more from each on
        for stay in stays:
            if stay.first + LEAVES <= stay.last:
                gone[stay.first + LEAVES] += stay.bytes
                gone[min(stay.last, count - 1) + 1] -= stay.bytes
        away_bytes = host_bytes = 0
        stuck: set[int] = set()
        lowered = []
        for i, event in enumerate(self.events):
            away_bytes += gone[i]
            host_bytes += on_host[i]
            least_bytes = event.need_bytes - host_bytes - away_bytes
            excess = math.ceil(max(least_bytes - limit_bytes, 0))
            if excess > 0 and (saved := saved_at.get(i)) is not None:
                stay = stays[saved]
                stuck.add(saved)
                part = min(excess, stay.bytes)
                host_bytes, excess = host_bytes + part, excess - part
                on_host[min(stay.last, count - 1) + 1] -= part
                if i + LEAVES <= stay.last:
                    gone[i + LEAVES] -= stay.bytes
                    gone[min(stay.last, count - 1) + 1] += stay.bytes
            lowered.append(host_bytes + excess)
        if not any(lowered):
            return self
        saves = [save for i, save in enumerate(self.saves) if i not in stuck]
        return replace(self, events=self._lowered(lowered), saves=saves)

    def _lowered(self, by: Iterable[int]) -> list[Event]:
        """Its events, each with so much less in use."""
        return [
            event._replace(need_bytes=event.need_bytes - less)
            for event, less in zip(self.events, by, strict=False)
        ]

    def had_hooks(self) -> bool:
        """Whether anything was seen of what it saved: only its end, without hooks."""
        return len(self.events) > 1

    def between(self, places: slice) -> Step:
        """A part of the step: what was saved at these places, and its use."""
        first, end = places.start, places.stop
        events = [event for event in self.events if first <= event.place < end]
        saves = [save for save in self.saves if first <= save[0] < end]
        return replace(self, events=events, saves=saves)

    def most_bytes(self) -> int:
        """Most bytes in use, until backward is through."""
        return max((event.need_bytes for event in self.events), default=0)

    def scaled(self, factor: float) -> Step:
        """The step as it would be if all in it were larger."""
        events = [
            event._replace(need_bytes=int(factor * event.need_bytes))
            for event in self.events
        ]
        saves = [(place, int(factor * size_bytes)) for place, size_bytes in self.saves]
        return replace(self, events=events, saves=saves)

    def with_born(self) -> Step:
        """The step as it would be if what the optimizer made had been there before."""
        more = self.born_bytes
        events = [e._replace(need_bytes=e.need_bytes + more) for e in self.events]
        need_bytes = self.need_bytes + more
        return replace(self, events=events, need_bytes=need_bytes, born_bytes=0)

    def is_same(self, other: Step) -> bool:
        """Whether another step showed the same, but for when, and what was copied."""
        return self._shown() == other._shown()

    def _shown(self) -> tuple[object, ...]:
        used = self.need_bytes, self.optimizer_bytes, self.temporary_bytes
        host = self.host_bytes, self.state_host_bytes, self.state_bytes
        made = self.away_bytes, self.born_bytes
        return used, host, made, self.saves, self.events

    @property
    def unreached_bytes(self) -> int:
        """Most bytes on the host that were neither sent there nor optimizers' state."""
        return max(self.host_bytes - self.state_host_bytes, 0)

    def used_host(self) -> bool:
        """Whether anything of the device's was on the host."""
        return self.sent_bytes > 0 or self.host_bytes > 0
