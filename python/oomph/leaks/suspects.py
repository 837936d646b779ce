"""What is suspected to leak: seen from scan to scan, told as far as it is certain.

A suspect is a place that held more at one scan after another. What becomes of it shows
at later scans: it grows on, or it gives back what it held, or it stops to grow.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from oomph.leaks import bounds, source
from oomph.leaks.findings import BOUNDED, LEAKS, Finding
from oomph.leaks.following import Changes
from oomph.leaks.inventory import Inventory
from oomph.leaks.slots import Slot
from oomph.leaks.source import Line

_CERTAIN_SCANS = 9  # that showed growth, before it is a leak
_ENOUGH_SCANS = 6  # the same, if the watch ends
_APART_MIN = 2  # rounds without growth that say nothing
_ENOUGH_ROUNDS = 16  # if the watch ends, and it has grown until then
_DOUBTED_ROUNDS = 24  # where the code speaks for a bound: not told before


@dataclass(eq=False)
class Suspect:
    """A place that holds more and more.

    Attributes:
        finding: What is known of it, without its line while that is searched.
        kinds: Of tensors that it holds; empty: it is one tensor that gets longer.
        began: The round after which it was seen to grow.
        seen: The last round at which it had grown.
        slot: What is to be followed to find the line; None: nothing, or no more.
        confirmed: How many scans showed that it grew.
        ended: Whether it has stopped to grow.
        gave_back: Whether something that it held is gone.
        is_doubted: Whether the code speaks for a bound.
        has_graph: Whether what it holds has a graph, which nobody keeps for long.
        is_global: Whether a module's variable holds it.
        held_at: Where the function is, or the code, whose variable leads to it.
        members: Some of what it holds.
        site: Of the one tensor that gets longer: who allocates it.
        dismissed: Whether it is no leak, however much it grows.
        is_chain: Whether it is a graph that goes back through all rounds.
    """

    finding: Finding
    kinds: set[Hashable]
    began: int
    seen: int
    slot: Slot | None = None
    confirmed: int = 1
    ended: bool = False
    gave_back: bool = False
    is_doubted: bool = False
    has_graph: bool = False
    is_global: bool = False
    held_at: Line | None = None
    members: list[weakref.ref[Any]] = field(default_factory=list)
    site: int = 0
    dismissed: bool = False
    is_chain: bool = False
    _apart: int = 0  # rounds between the last two scans that showed growth

    @property
    def is_live(self) -> bool:
        """Whether it was seen to grow until now."""
        return not self.ended and not self.dismissed

    def join(self, other: Suspect) -> None:
        """Another kind of tensors, or another of the same, in the same place."""
        if not other.kinds <= self.kinds:
            more = other.finding.growth_bytes
            self.finding = replace(
                self.finding, growth_bytes=self.finding.growth_bytes + more
            )
        self.kinds |= other.kinds
        self.members += other.members
        self.has_graph |= other.has_graph

    def follow(self, inventory: Inventory) -> None:
        """A scan has ended: whether it grew on."""
        if any(ref() is None for ref in self.members):
            self.gave_back = True
            self.members = [ref for ref in self.members if ref() is not None]
        grew, now = inventory.has_grown(self.kinds), inventory.rounds[-1]
        self.note(grew, now, inventory.rounds[-2] if inventory.scans > 1 else now)

    def note(self, grew: bool, now: int, until: int | None = None) -> None:
        """A scan at the end of a round showed whether it grew until a round."""
        until = now if until is None else until
        if grew:
            self.confirmed += 1
            self._apart, self.seen = max(_APART_MIN, now - self.seen), until
        self.ended = not grew and now - self.seen > self._apart

    def learn(self, changes: Changes) -> None:
        """Its slot was followed, and changed."""
        assert self.slot is not None
        line, name = changes.line, self.slot.name
        names = changes.names | ({name} if name else set())
        if self.site and not all(source.keeps_old(each, names) for each in changes.all):
            self.dismissed = True  # made anew each time, and longer each time
        if not changes.is_named and name:
            line = source.puts_into(name, self.slot.key is not None) or line
        self.gave_back |= changes.shrank
        self._set_line(line, names)

    def suppose(self) -> None:
        """Its slot was not seen to change: the source may tell, or who allocates."""
        name = self.slot.name if self.slot is not None else ""
        binds = self.slot is not None and self.slot.key is not None
        line = source.puts_into(name, binds) if name else None
        places = (line, *self.finding.allocated_at, self.held_at)
        self._set_line(next(filter(None, places), None), {name} if name else set())

    def _set_line(self, line: Line | None, names: set[str]) -> None:
        if line is None:
            return
        self.finding = replace(self.finding, line=line)
        self.is_doubted = bounds.is_bounded(line, names)
        if self.is_global and line.function not in ("", *source.running_functions()):
            self.finding = replace(self.finding, verdict="global")

    def told(self, certain_rounds: int, at_end: bool) -> Finding | None:
        """What can be said of it, or None.

        Args:
            certain_rounds: Of growth, after which it is a leak.
            at_end: The watch ends, and it has grown until then.
        """
        if self.ended or self.dismissed or self.confirmed < 2 or self.slot is not None:
            return None
        rounds = self.seen - self.began
        if self.is_doubted and rounds < _DOUBTED_ROUNDS:
            return None
        enough = rounds >= _ENOUGH_ROUNDS and self.confirmed >= _ENOUGH_SCANS
        certain = self.has_graph or (at_end and enough)
        if rounds >= certain_rounds and self.confirmed >= _CERTAIN_SCANS:
            certain = True
        doubted = self.is_doubted and rounds < 2 * certain_rounds
        if self.gave_back or doubted:
            certain = False
        return replace(self.finding, certainty=LEAKS if certain else BOUNDED)
