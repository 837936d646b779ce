"""What is suspected to leak: seen from scan to scan, reported as far as it is certain.

A suspect is a place that held more at one scan after another. What becomes of it shows
at later scans: it grows on, or it gives back what it held, or it stops to grow.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from oomph.holders.lines import Line
from oomph.leaks.findings import BOUNDED, LEAKS, Finding
from oomph.leaks.inventory import Inventory, Seen
from oomph.leaks.lines import bounds, source
from oomph.leaks.lines.following import Changes
from oomph.leaks.lines.places import Filled, Places

_CERTAIN_SCANS = 9  # that showed growth, before it is a leak
_ENOUGH_SCANS = 6  # the same, if the watch ends
SLOWS = 0.5  # of the growth a round before: what grows by less has come to a bound
_HALVED_SCANS = 5  # at least, to compare the growth of two halves
_APART_MIN = 2  # rounds without growth that say nothing
_ENOUGH_ROUNDS = 16  # if the watch ends, and it has grown until then
_DOUBTED_ROUNDS = 24  # where the code speaks for a bound: not reported before
_MEMBERS_MAX = 64  # of which it is seen whether they are given back
_QUIET_ROUNDS = 8  # without growth of any memory, at least, until it has ended
_QUIET_SHARE = 6  # part of the rounds in which it grew: as many as that
_EXPECTED = 3  # tensors that would have come in these
_TEETH = 2  # what was given back, times this: until there is more it says nothing
_SOME = 3  # of what it holds, of which most show where it is
_LIMITED_ROUNDS = 64  # where the holder has one: the same


class _Stayed(NamedTuple):
    """What of a suspect's kinds was there at the end of a round, and one scan later."""

    since: int  # the round
    number: int
    size_bytes: int


@dataclass(eq=False)
class Suspect:
    """A place that holds more and more.

    Attributes:
        finding: What is known of it, without its line while that is searched.
        kinds: Of tensors that it holds; empty: it is one tensor that gets longer.
        began: The round after which it was seen to grow.
        seen: The last round at which it had grown.
        places: Of which one is meant, while its line is searched.
        confirmed: How many scans showed that it grew.
        ended: Whether it has stopped to grow.
        gave_back: Whether something that it held is gone.
        is_doubted: Whether the code speaks for a bound.
        has_graph: Whether what it holds has a graph, which nobody keeps for long.
        is_global: Whether a module's variable holds it.
        is_limited: Whether a holder is built to have a bound, such as a queue's size.
        is_capped: Whether it is filled only as long as its length is below something.
        is_far: Whether no name leads to it.
        held_at: Where the function is, or the code, whose variable leads to it.
        members: Some of what it holds.
        owned: Of its kinds those of which nobody else was seen to hold any.
        site: Of the one tensor that gets longer: who allocates it.
        dismissed: Whether it is no leak, however much it grows.
        rests: Whether it did not grow since the scan before, as far as that shows.
        is_chain: Whether it is a graph that goes back through all rounds.
    """

    finding: Finding
    kinds: set[Hashable]
    began: int
    seen: int
    places: Places = field(default_factory=Places)
    confirmed: int = 1
    ended: bool = False
    gave_back: bool = False
    is_doubted: bool = False
    has_graph: bool = False
    is_global: bool = False
    is_limited: bool = False
    is_capped: bool = False
    is_far: bool = False
    held_at: Line | None = None
    members: list[Seen] = field(default_factory=list)
    owned: set[Hashable] = field(default_factory=set)
    site: int = 0
    dismissed: bool = False
    rests: bool = False
    is_chain: bool = False
    _apart: int = 0  # rounds between the last two scans that showed growth
    _place: Hashable = None  # by which the line was found
    _was_filled: bool = False  # that is a container, which was seen to grow
    _stayed: list[_Stayed] = field(default_factory=list)  # at each scan
    _tooth: int = 0  # tensors it had beside what was there before it gave most back

    @property
    def is_live(self) -> bool:
        """Whether it was seen to grow until now."""
        return not self.ended and not self.dismissed

    def join(self, other: Suspect) -> None:
        """Another kind of tensors, or another of the same, in the same place."""
        if not other.kinds <= self.kinds:
            more = self.finding.growth_bytes + other.finding.growth_bytes
            self.finding = replace(self.finding, growth_bytes=more)
            also = {each.since: each for each in other._stayed}
            self._stayed = [
                _Stayed(now, count + also[now].number, size + also[now].size_bytes)
                for now, count, size in self._stayed
                if now in also
            ]
        self.kinds |= other.kinds
        self.members += other.members
        self.owned |= other.owned
        self.has_graph |= other.has_graph
        self.is_limited &= other.is_limited

    def may_be(self, other: Suspect) -> bool:
        """Whether one of the same line is about the same memory."""
        return bool(self.kinds & other.kinds) or self.is_chain or other.is_chain

    def follow(self, inventory: Inventory) -> bool:
        """A scan has ended: whether it grew on."""
        if any(seen.is_gone for seen in self.members):
            self.gave_back = True
            self.members = [seen for seen in self.members if not seen.is_gone]
        more = inventory.kept(self.owned)
        self.members = [*dict.fromkeys([*self.members, *more])][:_MEMBERS_MAX]
        grew, now = inventory.has_grown(self.kinds), inventory.rounds[-1]
        until = now
        if inventory.scans > 1:  # else it knows of nothing that stayed
            until = inventory.rounds[-2]
            self._stayed.append(_Stayed(until, *inventory.stayed(self.kinds)))
            self._note_teeth()
        self.note(grew, now, until)
        self.rests = inventory.rests(self.kinds)
        return grew

    def follow_site(self, size_bytes: int, grew: bool, now: int) -> None:
        """The same for one tensor that gets longer: what its line's blocks take."""
        self._stayed.append(_Stayed(now, size_bytes, size_bytes))
        self.note(grew, now)

    def some(self, inventory: Inventory) -> list[torch.Tensor | None]:
        """What it has held for longest, of what is known, and some that came since.

        None for each of which Python holds nothing any more. The last that came are
        left out: they may be on their way yet.
        """
        found = self.members[:1]
        kept = inventory.kept(self.kinds)
        if self.is_far:  # the search for one takes long
            found = found or kept[:1]
        else:
            places = {place * len(kept) // _SOME for place in range(_SOME)}
            found += [kept[place] for place in sorted(places) if kept]
        refs = (seen.ref() for seen in found)
        there = {id(tensor): tensor for tensor in refs if tensor is not None}
        return [t if inventory.is_held(t) else None for t in there.values()]

    def note(self, grew: bool, now: int, until: int | None = None) -> None:
        """A scan at the end of a round showed whether it grew until a round."""
        until = now if until is None else until
        if grew:
            self.confirmed += 1
            self._apart, self.seen = max(_APART_MIN, now - self.seen), until
        self.ended = not grew and now - self.seen > self._apart

    def _slows(self) -> bool:
        """Whether it grew by much less in the later half of the rounds."""
        if len(self._stayed) < _HALVED_SCANS:
            return False
        first, last = self._stayed[0], self._stayed[-1]
        twice = first.since + last.since
        middle = min(self._stayed, key=lambda each: abs(2 * each.since - twice))
        if not first.since < middle.since < last.since:
            return False
        early = (middle.number - first.number) / (middle.since - first.since)
        late = (last.number - middle.number) / (last.since - middle.since)
        return late < SLOWS * early

    def _note_teeth(self) -> None:
        """What gives most of it back, now and then, is full again before it grows."""
        numbers = [each.number for each in self._stayed]
        top = numbers.index(max(numbers))
        rise = numbers[top] - min(numbers[: top + 1])
        if 2 * (numbers[-1] - min(numbers)) <= rise:
            self._tooth = rise

    def _is_within_teeth(self) -> bool:
        if self._tooth == 0:
            return False
        numbers = [each.number for each in self._stayed]
        return numbers[-1] - min(numbers) <= _TEETH * self._tooth

    def quiet_rounds(self) -> int:
        """After so many rounds in which no memory has grown it has ended to grow."""
        rounds = self.seen - self.began
        came = self._came() if self.kinds else rounds
        expected = _EXPECTED * rounds // max(1, came)
        share = _QUIET_SHARE if self.kinds else _QUIET_SHARE // 2
        return max(_QUIET_ROUNDS, rounds // share, expected)

    def _came(self) -> int:
        """How many tensors came and stayed: of few in many rounds a bound is far."""
        if len(self._stayed) < 2:
            return 0
        return self._stayed[-1].number - self._stayed[0].number

    def _measured(self) -> Finding:
        """The finding, with the bytes a round as measured over all scans since."""
        if len(self._stayed) < 2:
            return self.finding
        first, last = self._stayed[0], self._stayed[-1]
        grown = last.size_bytes - first.size_bytes
        if grown <= 0:
            return self.finding
        each = grown // (last.since - first.since)
        return replace(self.finding, growth_bytes=each)

    # ---- The line

    @property
    def is_searched(self) -> bool:
        """Whether its line is yet to be found."""
        return self.places.is_any

    def learn(self, changes: dict[Hashable, Changes]) -> None:
        """Its places were followed for a round: the line, if a container has grown.

        Args:
            changes: What happened to each place.
        """
        self.places.learn(changes)
        if self._take(self.places.grown()):
            return
        if not self.kinds and self._take(self.places.bound()):
            return  # one thing is replaced
        line = self.places.uses.line() if self.places.uses is not None else None
        if line is not None:
            self.places.forget()
            self._set_line(line, set())

    def held_now(self, places: Places, held_by: str) -> None:
        """What holds a member at a scan at which it has grown.

        If that is not what the line was found by, the line is searched again. While it
        is searched: a name that was bound anew and still leads to the member is meant,
        unless a container was seen to be filled.
        """
        held = {None, *(slot.place for slot in places.all)}
        if not self.is_searched and self._place in held:
            return
        self.finding = replace(self.finding, held_by=held_by)
        self._place = None
        self.places.become(places)
        if not self._was_filled:
            self._take(self.places.bound())

    def stands_at(self, line: Line) -> None:
        """Calls that have not returned hold it, and most of them are at a line.

        Of what was seen to be filled, that stands.
        """
        if self._was_filled:
            return
        self.places.forget()
        self.finding = replace(self.finding, verdict="unfinished calls", line=line)
        self.is_doubted = True

    def suppose(self) -> None:
        """Nothing was seen to change: the source may show it, or who allocates."""
        if self._was_filled:  # the line stands: other holders come and go
            self.places.forget()
            return
        if not self.kinds and self._take(self.places.bound()):
            return
        name, line = self.places.supposed(is_one=not self.kinds)
        self.places.forget()
        if self.site and line is not None and not source.keeps_old(line, {name}):
            self.dismissed = True
        lines = (line, *self.finding.allocated_at, self.held_at)
        self._set_line(next(filter(None, lines), None), {name} if name else set())

    def _take(self, found: Filled | None) -> bool:
        """Its line was seen, if any was; whether it was."""
        if found is None:
            return False
        slot, change = found
        line = change.line
        names = change.names | ({slot.name} if slot.name else set())
        keeps = (source.keeps_old(each, names) for each in change.all)
        if self.site and change.is_named and not all(keeps):
            self.dismissed = True  # made anew each time, and longer each time
        self.gave_back |= change.shrank
        self._place = slot.place
        self._was_filled = change.size_change > 0
        # Parts with a bound of their own, of which there are ever more, have none.
        self.is_limited &= isinstance(slot.holder, functools._lru_cache_wrapper)
        self.places.forget()
        self._set_line(line, names, change.all)
        called_at = change.callers.get(line) if line is not None else None
        self.finding = replace(self.finding, called_at=called_at)
        return True

    def _set_line(
        self, line: Line | None, names: set[str], others: Sequence[Line] = ()
    ) -> None:
        if line is None:
            return
        self.finding = replace(self.finding, line=line)
        lines = dict.fromkeys((line, *others))  # a ring gets longer by another line
        self.is_doubted = any(bounds.is_bounded(each, names) for each in lines)
        meant = frozenset(names)
        self.is_capped = any(bounds.is_capped(each, meant) for each in lines)
        if self.is_global and line.function not in ("", *source.running_functions()):
            self.finding = replace(self.finding, verdict="global")

    def finding_now(self, certain_rounds: int, at_end: bool) -> Finding | None:
        """What can be said of it, or None.

        Args:
            certain_rounds: Of growth, after which it is a leak.
            at_end: The watch ends, and it has grown until then.
        """
        unseen = self.site != 0 and self._place is None  # whether it keeps the old
        if self.ended or self.dismissed or self.is_searched or self._is_within_teeth():
            return None
        if self.confirmed < (_ENOUGH_SCANS if unseen else 2):
            return None
        rounds = self.seen - self.began
        if self.is_doubted and rounds < _DOUBTED_ROUNDS:
            return None
        if self.is_limited and rounds < _LIMITED_ROUNDS:
            return None
        enough = rounds >= _ENOUGH_ROUNDS and self.confirmed >= _ENOUGH_SCANS
        has_graph = self.has_graph and self.finding.verdict != "cycle"
        certain = has_graph or (at_end and enough)
        if rounds >= certain_rounds and self.confirmed >= _CERTAIN_SCANS:
            certain = True
        put_in = min(rounds, self._came()) if self.kinds else rounds
        doubted = self.is_doubted and put_in < 2 * certain_rounds
        slows = self._slows() or (self.rests and not has_graph)
        limited = self.is_limited or self.is_capped
        if self.gave_back or doubted or limited or slows:
            certain = False
        return replace(self._measured(), certainty=LEAKS if certain else BOUNDED)
