"""Looks at what stays from round to round, ever more seldom, and follows suspects.

At the end of each round two numbers are read: how many blocks are allocated, and how
many bytes. All tensors are looked at in the rounds 2 and 4, and between and after
them at growing distances as long as the numbers grow. So a leak that comes with
each round is found within a few, one that comes with each tenth within some dozens, and
what is looked at in a million rounds costs nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from oomph import _torch
from oomph.holders.lines import Line
from oomph.leaks import verdicts
from oomph.leaks.findings import Finding
from oomph.leaks.growth import Counts, Growth, counts, is_quiet, longest_rest
from oomph.leaks.inventory import Inventory
from oomph.leaks.lines.allocated import Sites, growing_lines, live_sites
from oomph.leaks.lines.following import LINES_MAX, Follower, Watched
from oomph.leaks.lines.uses import Uses
from oomph.leaks.suspects import SLOWS, Suspect
from oomph.steps import events

FIRST_SCAN = 2  # round
SECOND_SCAN = 4  # by then a graph may go back through three rounds
_DENSE = 4  # scans, one round after another; then each distance is half as much more
_REJUDGED = 2  # times as many scans until a kind is judged again that showed nothing
_CALM_SCANS = 5  # after which growth that shows no suspect is not believed
_SITE_SCANS = 3  # that a line's blocks must have grown over
_UNHELD_ROUNDS = 12  # of growth that nothing in Python explains
_RESTS = 2  # times as long as the longest rest before, at least, is an end
_LEVELS = 512  # rounds whose memory is known
_FOLLOWED = 16  # rounds in which the line is searched


class Detector:
    """Finds what grows over rounds of one kind: steps, or calls of a model.

    Args:
        certain_rounds: Of growth, after which what has no graph is called a leak.
        created: Gives the line of the last backward pass that created a graph.

    Attributes:
        rounds: How many have ended.
        modules: All that there are, as the last scan met them.
    """

    def __init__(self, certain_rounds: int, created: Callable[[], Line | None]) -> None:
        self.rounds = 0
        self.modules: list[torch.nn.Module] = []
        self._certain_rounds = certain_rounds
        self._created = created
        self._growth = Growth()
        self._levels: deque[Counts] = deque(maxlen=_LEVELS)
        self._starts: deque[int] = deque([events.next_node()], maxlen=3)
        self._suspects: list[Suspect] = []
        self._kinds: dict[Hashable, int] = {}  # the numbers of kinds of tensors
        self._dismissed: dict[Any, int] = {}  # kinds, and until which scan
        self._follower: Follower | None = None
        self._unfilled: list[Watched] = []  # what came empty while lines were followed
        self._rest = 0  # rounds in which lines are still searched
        self._skipped = 0  # lines of a round, as those before were looked at
        self._min_bytes: int | None = None  # before small blocks learned their lines
        self._period: int | None = None  # of the growth that began this look
        self._begin(FIRST_SCAN, 1)

    def _begin(self, first: int, unit: int) -> None:
        """Begins to look from a round on."""
        self._first, self._unit, self._next = first, unit, first
        self._inventory = Inventory(self._kinds)
        self._dismissed.clear()
        self._sites: list[Sites] = []
        self._counts: list[Counts] = []  # at each scan

    def stop(self) -> None:
        """Leaves the program as it was; lines that were not seen are supposed."""
        self._end_following()
        self._give_up(self._searched())
        self._know_small_blocks(False)

    # ---- Rounds

    def end_round(self, scan: bool = False) -> bool:
        """A round has ended.

        Args:
            scan: Somebody needs the modules.

        Returns:
            Whether it scanned.
        """
        self.rounds += 1
        self._end_following()
        now = counts()
        self._levels.append(now)
        period = self._growth.add(now)
        is_late = period is not None and self._next - self.rounds > 4 * period
        if period is not None and is_late and not self._has_live():
            self._period = period
            self._begin(self.rounds, period)
        due = self.rounds == self._next
        if due:
            self._plan_next()
        scans = scan or self.rounds == SECOND_SCAN or (due and self._is_worth(now))
        grown = self._has_grown(now)
        if scans:
            self._scan(now, grown)
        self._starts.append(events.next_node())
        # What grows once in a period comes in any of its rounds.
        is_near = self._next - self.rounds <= (self._period or 1)
        soon = is_near or bool(self._searched())
        may_grow = grown or self.rounds == FIRST_SCAN or self._period is not None
        found = any(s.is_live and not s.is_searched for s in self._suspects)
        self._know_small_blocks(soon and not found and may_grow)
        self._begin_following()
        return scans

    def _has_live(self) -> bool:
        """Whether anything is seen to grow already."""
        return any(suspect.is_live for suspect in self._suspects)

    def _plan_next(self) -> None:
        past = (self.rounds - self._first) // self._unit
        apart = 1 if past < _DENSE else max(1, past // 2)
        self._next = self.rounds + apart * self._unit

    def _is_worth(self, now: Counts) -> bool:
        """Whether a scan can show anything."""
        return bool(self._suspects) or not self._counts or self._has_grown(now)

    def _has_grown(self, now: Counts) -> bool:
        if not self._counts:
            return False
        last = self._counts[-1]
        return self._period is not None or (
            now.blocks > last.blocks or now.size_bytes > last.size_bytes
        )

    def _know_small_blocks(self, know: bool) -> None:
        """Small blocks learn their lines, which costs something each."""
        if know and self._min_bytes is None:
            self._min_bytes = _torch.set_site_min_bytes(1)
        elif not know and self._min_bytes is not None:
            _torch.set_site_min_bytes(self._min_bytes)
            self._min_bytes = None

    # ---- Scans

    def _scan(self, now: Counts, grown: bool) -> None:
        inventory = self._inventory
        self.modules = inventory.scan(self.rounds)
        self._sites.append(live_sites())
        self._counts.append(now)
        judge = verdicts.Judge(self._before(), self.rounds, inventory.mark)
        self._follow(judge)
        known = set().union(*(s.kinds for s in self._suspects))
        known |= {k for k, until in self._dismissed.items() if inventory.scans < until}
        groups = [g for g in inventory.growing(grown) if g.kind not in known]
        tensors = inventory.tensors()
        self._chained(judge, tensors)
        if groups:
            found = judge.groups(groups)
            until = _REJUDGED * inventory.scans
            self._dismissed.update((group.kind, until) for group in groups)
            self._suspects += found
        if len(self._sites) >= _SITE_SCANS and not groups:
            self._joined(judge, tensors)
        tensors.clear()
        for suspect in self._suspects:
            if suspect.finding.verdict == "create_graph":
                suspect.finding = replace(suspect.finding, line=self._created())
        self._judge_growth()
        if self._searched():
            self._rest = max(_FOLLOWED, self._next - self.rounds)

    def _follow(self, judge: verdicts.Judge) -> None:
        """What has become of the suspects since the last scan."""
        members: dict[Suspect, list[torch.Tensor | None]] = {}
        free: list[Suspect] = []
        for suspect in self._suspects:
            if suspect.site:
                _, size_bytes = self._sites[-1].get(suspect.site, (0, 0))
                grew = self._site_grew(suspect)
                suspect.follow_site(size_bytes, grew, self.rounds)
            grew = bool(suspect.kinds) and suspect.follow(self._inventory)
            if grew and suspect.finding.verdict != "cycle":  # which nobody holds
                few = suspect.some(self._inventory)
                if few:
                    members[suspect] = few
                else:
                    free.append(suspect)
        free += judge.search_again(members)
        for suspect in free:
            if suspect.is_searched:
                self._suspects.remove(suspect)
                for kind in suspect.kinds:  # something else may hold more of these
                    self._dismissed.pop(kind, None)
        self._join_equal()

    def _before(self) -> int:
        rounds = self._inventory.rounds
        return rounds[-3] if len(rounds) > 2 else rounds[0]

    def _chained(self, judge: verdicts.Judge, tensors: list[torch.Tensor]) -> None:
        """Tensors whose graphs go back through rounds, and whether they still do."""
        if len(self._starts) < (self._starts.maxlen or 0):
            return
        found = judge.chained(tensors, list(self._starts), self.growth_bytes)
        names = {_name(suspect): suspect for suspect in found}
        for suspect in self._suspects:
            if suspect.is_chain:
                suspect.note(names.pop(_name(suspect), None) is not None, self.rounds)
        for suspect in names.values():
            suspect.is_chain, suspect.confirmed = True, 2
            self._suspects.append(suspect)

    def _joined(self, judge: verdicts.Judge, tensors: list[torch.Tensor]) -> None:
        known = {suspect.site for suspect in self._suspects}
        sites = self._sites[-_SITE_SCANS:]
        rounds = self._inventory.rounds[-_SITE_SCANS:]
        if self._has_live():
            return
        for suspect in judge.joined(sites, rounds, tensors):
            if suspect.site not in known:
                self._suspects.append(suspect)

    def _site_grew(self, suspect: Suspect) -> bool:
        """Since the last scan; what slows down has come to its bound meanwhile."""
        if len(self._sites) < 2:
            return False
        sizes = [sites.get(suspect.site, (0, 0))[1] for sites in self._sites[-3:]]
        grown = [b - a for a, b in pairwise(sizes)]
        suspect.gave_back |= grown[-1] < 0
        apart = [b - a for a, b in pairwise(self._inventory.rounds[-len(sizes) :])]
        rates = [size / max(1, n) for size, n in zip(grown, apart, strict=True)]
        return rates[-1] > 0 and rates[-1] >= SLOWS * rates[0]

    def _judge_growth(self) -> None:
        """Growth that shows no suspect: of something outside Python, or of nothing."""
        if self._has_live() or self._inventory.scans < _CALM_SCANS:
            return
        rounds = self._inventory.rounds
        lines = growing_lines(self._sites[-_CALM_SCANS:])
        if lines and rounds[-1] - rounds[-_CALM_SCANS] >= _UNHELD_ROUNDS:
            at = tuple(lines)
            finding = Finding("grows", None, self.growth_bytes, allocated_at=at)
            suspect = Suspect(finding, set(), rounds[-_CALM_SCANS], self.rounds)
            suspect.confirmed, suspect.places.uses = 2, Uses((), at)
            self._suspects.append(suspect)
        elif self._period is not None:
            self._growth.misled(self._period)
            self._period = None

    # ---- Lines

    def _searched(self) -> list[Suspect]:
        return [suspect for suspect in self._suspects if suspect.is_searched]

    def _begin_following(self) -> None:
        """Follows the lines of the next round, if a line is to be found."""
        searched, unfilled = self._searched(), self._unfilled
        self._unfilled = []
        if not searched:
            return
        self._rest -= 1
        places = [place for suspect in searched for place in suspect.places.all]
        uses = [s.places.uses for s in searched if s.places.uses is not None]
        follower = Follower(places, self._skipped, uses, unfilled)
        if self._rest >= 0 and follower.start():
            self._follower = follower
        else:
            self._give_up(searched)

    def _end_following(self) -> None:
        if self._follower is None:
            return
        changes = self._follower.stop()
        more = self._skipped + LINES_MAX
        self._skipped = more if self._follower.was_cut else 0
        self._unfilled = self._follower.unfilled
        self._follower = None
        for suspect in self._searched():
            suspect.learn(changes)
        self._join_equal()

    def _give_up(self, searched: list[Suspect]) -> None:
        """The line was not seen: where the source fills what has this name, if any."""
        for suspect in searched:
            suspect.suppose()
        self._join_equal()

    def _join_equal(self) -> None:
        """Of suspects that hold the same by the same line one is left."""
        found: list[Suspect] = []
        for suspect in self._suspects:
            line = suspect.finding.line
            same = [s for s in found if line is not None and s.finding.line == line]
            known = next((s for s in same if s.may_be(suspect)), None)
            if known is None:
                found.append(suspect)
            elif suspect.is_chain and not known.is_chain:  # which says more of it
                suspect.join(known)
                found[found.index(known)] = suspect
            else:
                known.join(suspect)
        self._suspects = found

    # ---- What was found

    def findings(self, at_end: bool = False) -> list[Finding]:
        """What can be said now.

        Args:
            at_end: Nothing more will be seen.
        """
        at_end = at_end and self._grows_still()
        found = [
            (frozenset(suspect.kinds) or suspect, finding)
            for suspect in self._suspects
            if (finding := suspect.finding_now(self._certain_rounds, at_end))
            and not self._has_come_to_rest(suspect)
        ]
        return self._explained(told_once(found))

    def _grows_still(self) -> bool:
        """Whether it grew in the last rounds, as far as they were looked at."""
        rounds = self._inventory.rounds
        if not rounds or self.rounds - rounds[-1] <= 2:
            return True
        return self._has_grown(self._levels[-1])

    def _has_come_to_rest(self, suspect: Suspect) -> bool:
        """Whether no memory has grown for so long that this would show.

        A graph gets longer whether or not its nodes keep any.
        """
        levels = [*self._levels]
        rounds = max(suspect.quiet_rounds(), 3 * (self._period or 0))
        if suspect.is_chain or len(levels) < rounds or not is_quiet(levels[-rounds:]):
            return False
        # What comes in bursts has rested before.
        rounds = _RESTS * longest_rest(levels[suspect.began - self.rounds :])
        return len(levels) >= rounds and (rounds < 2 or is_quiet(levels[-rounds:]))

    def _explained(self, found: list[Finding]) -> list[Finding]:
        """Adds the lines that allocate what grows, and what only a graph keeps."""
        if len(found) != 1 or not self._sites:
            return found
        (finding,) = found
        lines = growing_lines(self._sites[-_SITE_SCANS:])
        known = finding.allocated_at
        places = (*known, *(line for line in lines if line not in known))
        size_bytes = finding.growth_bytes
        if finding.made_by is not None:
            size_bytes = max(size_bytes, self.growth_bytes)
        return [replace(finding, growth_bytes=size_bytes, allocated_at=places[:3])]

    @property
    def looked_at(self) -> tuple[int, int]:
        """The rounds of this look between which it is known what has stayed."""
        rounds = self._inventory.rounds
        return (rounds[0], rounds[-2]) if len(rounds) > 1 else (0, 0)

    @property
    def growth_bytes(self) -> int:
        """By how much memory has grown with each round of this look."""
        if len(self._counts) < 2:
            return 0
        first, last = self._counts[0], self._counts[-1]
        over = self._inventory.rounds[-1] - self._inventory.rounds[0]
        return max(0, last.size_bytes - first.size_bytes) // max(1, over)


def told_once(found: Sequence[tuple[Hashable, Finding]]) -> list[Finding]:
    """Of findings about the same kinds of tensors each has an equal part of the growth.

    Which place holds how much of it is not known.

    Args:
        found: Each with the kinds that it is about.
    """
    places = Counter(kinds for kinds, _ in found)
    return [
        replace(finding, growth_bytes=finding.growth_bytes // places[kinds])
        for kinds, finding in found
    ]


def _name(suspect: Suspect) -> tuple[str, str | None]:
    return suspect.finding.verdict, suspect.finding.held_by
