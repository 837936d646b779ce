"""Whether a script fits as a rank of a world, for the rank that needs most.

Ranks of a world ask for different memory: stages of a pipeline, uneven shards. Those
that do are found by running some: the first and the last, and between two that ask for
different things the one in the middle, until neighbours do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from oomph import simulate
from oomph.base.sizes import format_size, parse_size
from oomph.fitting import answers, cards
from oomph.fitting.answers import Fit
from oomph.fitting.limit import Late, Limit
from oomph.fitting.measuring import Script, Way
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from oomph.fitting.progress import Progress
from oomph.fitting.runs import Runs, jobs
from oomph.simulate.rank import LOCAL_SIZE, Rank

_RUNS_MAX = 16  # of ranks of a world, to find those that differ


@dataclass(frozen=True)
class World:
    """A world that a script is to run in.

    Attributes:
        size: Its ranks.
        local_size: Ranks on each machine.
        only: The rank to run; None: those that differ are looked for.
    """

    size: int
    local_size: int = LOCAL_SIZE
    only: int | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """The ranks to begin with."""
        return (0, self.size - 1) if self.only is None else (self.only, self.only)

    def script(self, whole: Script, rank: int) -> Script:
        """A script as a launcher would start it for a rank, alone."""
        launched = Rank(rank, self.size, self.local_size).variables()
        return replace(whole, variables={**whole.variables, **launched})


@dataclass(frozen=True)
class Ranks:
    """Ranks that ask for the same, as far as was run.

    Attributes:
        first: One that was run.
        last: Another, which asks for the same, or the same one.
        record: Of the first, without a limit.
    """

    first: int
    last: int
    record: Record


@dataclass(frozen=True)
class WorldFit:
    """What is known of a script as one of the ranks of a world.

    Attributes:
        world: The world.
        ranks: Groups of ranks, in order.
        run_count: How many ranks were run to find them.
        unsure: Whether there may be more groups than were looked for.
        fit: Of the rank that needs most.
    """

    world: World
    ranks: list[Ranks]
    run_count: int
    unsure: bool
    fit: Fit

    @property
    def largest(self) -> Ranks:
        """The group that needs most memory."""
        return max(self.ranks, key=lambda each: each.record.needed_bytes)

    def table(self) -> str:
        """Tells all of it as ``oomph fit`` does."""
        return f"{_heading(self)}\n{_groups(self)}\n\n{self.fit.table()}"

    def data(self) -> dict[str, Any]:
        """All of it as data."""
        from oomph.fitting import report

        groups = [
            {"first": e.first, "last": e.last, "needed_bytes": e.record.needed_bytes}
            for e in self.ranks
        ]
        return {
            "world": self.world.size,
            "local_world": self.world.local_size,
            "ranks": groups,
            "rank": self.largest.first,
            "run_count": self.run_count,
            "unsure": self.unsure,
            **report.data(self.fit),
        }


def sizes(text: str) -> list[int]:
    """The sizes of ``8,64,1024``.

    Raises:
        ValueError: They are no such list.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--world {text}: a list of counts, such as 8,64") from None
    if min(found) < 1:
        raise ValueError(f"--world {text}: a world has at least one rank")
    return found


def find(
    script: Script,
    names: str,
    host: str,
    asked: World,
    progress: Progress,
    brief: bool = False,
    within_s: float | None = float("inf"),
) -> WorldFit:
    """Whether the rank of a world that needs most fits each card.

    Args:
        script: What to run.
        names: Of cards.
        host: Memory of each machine, which its ranks share.
        asked: The world.
        progress: Shows what is about to run.
        brief: As for :func:`oomph.fitting.answers.find`.
        within_s: As there, for each world.

    Raises:
        ScriptError: The script fails where memory is not the reason.
        SimulationError: There is no such card, or PyTorch does not fit.
        ValueError: There is no such rank.
    """
    devices = Rank(0, asked.size, asked.local_size).devices
    share = str(parse_size(host) // devices)
    targets = cards.targets(names, share, f"devices={devices}")
    simulate.check(targets[-1].text)
    records: dict[int, Record] = {}
    limit = Limit(within_s)
    with Launcher() as launcher:

        @cache
        def runs_of(rank: int) -> Runs:
            shown = progress.of(f"rank {rank} of {asked.size}")
            asked_script = asked.script(script, rank)
            return Runs(launcher, asked_script, shown, limit, targets[-1])

        def run(rank: int) -> Record:
            return runs_of(rank).roomy(targets[-1], Way.OOMPH)

        try:
            unsure = look(records, run, *asked.ends)
        except Late:
            unsure = True
        ranks = grouped(records)
        largest = max(ranks, key=lambda each: each.record.needed_bytes)
        most, count = runs_of(largest.first), jobs(launcher)
        fit = answers.find_by(most, targets, count, brief=brief)
    return WorldFit(asked, ranks, len(records), unsure, fit)


def look(
    known: dict[int, Record], run: Callable[[int], Record], first: int, last: int
) -> bool:
    """Runs ranks until neighbours differ, or too many were run.

    Args:
        known: What was run, to which this adds.
        run: Runs a rank.
        first: Of the ranks to look at.
        last: Of those.

    Returns:
        Whether there may be more that differ.
    """
    for rank in sorted({first, last}):
        known[rank] = run(rank)
    while True:
        gaps = [
            (low, high)
            for low, high in pairwise(sorted(known))
            if high - low > 1 and known[low].trace != known[high].trace
        ]
        if not gaps or len(known) >= _RUNS_MAX:
            return bool(gaps)
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        known[(low + high) // 2] = run((low + high) // 2)


def grouped(known: dict[int, Record]) -> list[Ranks]:
    """The groups, in order, into which ranks that were run fall."""
    groups = groupby(sorted(known), key=lambda rank: known[rank].trace)
    runs = [list(ranks) for _, ranks in groups]
    return [Ranks(each[0], each[-1], known[each[0]]) for each in runs]


def _heading(found: WorldFit) -> str:
    machines = -(-found.world.size // found.world.local_size)
    where = f"{machines} machines" if machines > 1 else "one machine"
    count = f"{found.run_count} rank{'s' if found.run_count > 1 else ''}"
    return f"A world of {found.world.size} on {where}, of which {count} ran."


def _groups(found: WorldFit) -> str:
    """Which ranks differ, and for which the table is."""
    largest, *others = sorted(found.ranks, key=lambda each: -each.record.needed_bytes)
    parts = [f"The table is for {_named(largest)}"]
    parts += [f"{_takes(e)} {format_size(e.record.needed_bytes)}" for e in others]
    if found.unsure:
        parts.append("there may be others that differ")
    return "; ".join(parts) + "."


def _takes(ranks: Ranks) -> str:
    return f"{_named(ranks)} take{'s' if ranks.first == ranks.last else ''}"


def _named(ranks: Ranks) -> str:
    if ranks.first == ranks.last:
        return f"rank {ranks.first}"
    return f"ranks {ranks.first} to {ranks.last}"
