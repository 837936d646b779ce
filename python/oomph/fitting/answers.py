"""On which cards a script fits, why not, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from oomph import simulate
from oomph.base.sizes import format_size
from oomph.fitting import report
from oomph.fitting.answer import Answer
from oomph.fitting.cards import Target
from oomph.fitting.limit import Late, Limit
from oomph.fitting.measuring import Script, Way
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from oomph.fitting.progress import Progress
from oomph.fitting.runs import Runs, jobs
from oomph.fitting.smallest import Smallest, smallest
from oomph.fitting.varying import Largest, Option, Search, Varied
from oomph.fitting.whole import Whole

_Result = TypeVar("_Result")
# The whole script is waited for until so long after the question was asked, or for a
# share of what all else took, at most so long.
_WHOLE_S, _WHOLE, _MORE_S = 10.0, 0.5, 30.0


@dataclass(frozen=True)
class Fit:
    """What is known of a script: :func:`oomph.fit` gives it.

    Attributes:
        answers: Card by card, the smallest first, and way by way.
        peak: The run on a card that is full just at the script's peak; None: it has no
            lines of source, or the answer is brief.
        smaller: The run on the largest card that is too small without offload; None:
            all are large enough, or as for the peak.
        smaller_card: That card.
        guessed: Runs without a limit in which as much matches what nobody knows, such
            as a mask, as the share of all says by which they are found: few, and all;
            the script may fail then. Empty: nothing had to be guessed.
        smallest: The memory in bytes of the smallest card on which it fits, by way;
            None: none is known. Empty: none was sought.
        unsure: Ways of which there may be a smaller card, as the time was up before.
        not_run: What was not run, or not to its end, for that.
        whole: The script to its end and without a limit, or as much of it as there was
            time for; None: all runs lasted to its end, or this has shown no more.
        grows: Whether it has shown that the script needs more after its first steps, so
            that all other runs lasted longer, too.
    """

    answers: list[Answer]
    peak: Record | None
    smaller: Record | None
    smaller_card: Target | None
    guessed: dict[float, Record]
    smallest: dict[Way, int | None]
    unsure: frozenset[Way] = frozenset()
    not_run: Sequence[str] = ()
    whole: Record | None = None
    grows: bool = False

    def fits(self, way: str = "rescue") -> bool:
        """Whether it fits on all cards.

        Args:
            way: Who gives out their memory: ``"native"`` (PyTorch's allocator),
                ``"expandable"`` (with expandable segments), ``"oomph"`` (oomph without
                offload) or ``"rescue"`` (oomph).

        Returns:
            Whether it does; False as well if there was no time to find out.

        Raises:
            ValueError: There is no such way.

        Example:
            >>> found.fits("native")
            True
        """
        wanted = Way.named(way)
        return all(each.fits for each in self.answers if each.way is wanted)

    def on(self, card: str, way: str = "rescue") -> Answer:
        """What is known of one card.

        Args:
            card: As it was asked for.
            way: Who gives out its memory, as for :meth:`fits`.

        Returns:
            Whether it fits, and the numbers of the run that shows it.

        Raises:
            ValueError: The card was not asked for, or there is no such way.

        Example:
            >>> found.on("1GiB").fits
            True
        """
        wanted = Way.named(way)
        for each in self.answers:
            if each.way is wanted and each.card.name == card:
                return each
        known = ", ".join(dict.fromkeys(each.card.name for each in self.answers))
        raise ValueError(f"{card} was not asked for; the cards are {known}")

    def table(self) -> str:
        """Tells all of it as ``oomph fit`` does.

        Returns:
            A table of cards, what holds the memory at the peak, and what would help.

        Example:
            >>> print(found.table())
            card ...
        """
        return report.text(self)


def find(
    script: Script,
    cards: Sequence[Target],
    progress: Progress,
    is_trace: bool = False,
    brief: bool = False,
    within_s: float | None = float("inf"),
) -> Fit:
    """Whether a script fits each card in each way, and what would help.

    Args:
        script: What to run.
        cards: Where to, the smallest first.
        progress: Shows what is about to run, and what is known.
        is_trace: Whether it only asks for memory: nothing can be said of its source,
            and not how far a rescue goes.
        brief: Whether to leave out what would help, and the smallest cards.
        within_s: The time for the question, as :class:`Limit` has it.

    Raises:
        ScriptError: The script fails where memory is not the reason.
        SimulationError: There is no PyTorch that fits the simulated GPU.
    """
    simulate.check(cards[-1].text)
    with Launcher() as launcher:
        full_card = None if is_trace else cards[-1]
        runs = Runs(launcher, script, progress, Limit(within_s), full_card)
        # Alone, to know what host memory it takes.
        needed = format_size(runs.roomy(cards[-1], Way.OOMPH).allocated_bytes)
        progress.known(f"without a limit the script holds {needed} at its peak")
        return find_by(runs, cards, jobs(launcher), is_trace, brief)


def find_by(
    runs: Runs,
    cards: Sequence[Target],
    count: int,
    is_trace: bool = False,
    brief: bool = False,
) -> Fit:
    """The same by runs of a script, so many at a time; what has run is not run again.

    Args:
        runs: Of the script.
        cards: Where to, the smallest first.
        count: How many at a time.
        is_trace: As for :func:`find`.
        brief: As for :func:`find`.
    """
    ways = () if brief else tuple(Way)
    if is_trace:
        ways = tuple(way for way in ways if way is not Way.RESCUE)
    explains = not (is_trace or brief)
    whole = runs.whole(cards[-1])
    with _workers(runs.limit, count, whole) as pool:
        so_far = "" if whole is None else ", by its first steps"
        found = _find(runs, cards, pool, explains, dict.fromkeys(ways), so_far)
        if whole is None:
            return found
        late = _end(whole, runs.limit, runs.progress)
        if late is None or not whole.needs_more(late):
            return replace(found, whole=late)
        if late.rises:  # no later step would be the last
            return _known_by(late, found)
        sure = {w: None if w in found.unsure else found.smallest[w] for w in ways}
        longer = _find(runs.up_to(late), cards, pool, explains, sure)
        return replace(longer, whole=late, grows=True)


def _known_by(late: Record, found: Fit) -> Fit:
    """What is known with a run without a limit that needs more later.

    None without offload does with less than what the script holds.
    """
    answers = [
        replace(each, fits=False, was_run=False, record=late)
        if each.fits
        and each.way is not Way.RESCUE
        and late.allocated_bytes + each.roomy.other_bytes > each.card.memory_bytes
        else each
        for each in found.answers
    ]
    return replace(found, answers=answers, whole=late)


def _end(whole: Whole, limit: Limit, progress: Progress) -> Record | None:
    """What the whole script has shown once all else is known; says what is later."""
    elapsed_s = limit.elapsed_s()
    more_s = max(_WHOLE_S - elapsed_s, min(_WHOLE * elapsed_s, _MORE_S))
    progress.runs("on to the script's end, in case it needs more later")
    late = whole.result(min(more_s, limit.left_s()))
    if late is not None and whole.needs_more(late):
        needed = format_size(late.allocated_bytes)
        then = "and it still rises" if late.rises else "so all runs last longer"
        progress.known(f"later the script holds {needed}, {then}")
    return late


def _find(
    runs: Runs,
    cards: Sequence[Target],
    pool: ThreadPoolExecutor,
    explains: bool,
    least: Mapping[Way, int | None],
    so_far: str = "",
) -> Fit:
    """As :func:`find_by`.

    Args:
        runs: As there.
        cards: As there.
        pool: Of which as many run as there is room for.
        explains: Whether to say what would help.
        least: Of which ways the smallest card is sought, and a size below which there
            is none; None: that is not known.
        so_far: What restricts each yes, as it is told.
    """

    def show(future: Future[Answer]) -> None:
        if not future.cancelled() and future.exception() is None:
            answer = future.result()
            restricted = so_far if answer.fits else ""
            runs.progress.known(f"{report.verdict(answer)}{restricted}")

    not_run: list[str] = []

    def in_time(future: Future[_Result] | None, what: str) -> _Result | None:
        try:
            return future.result() if future else None
        except Late:
            not_run.append(what)
            return None

    # What would help takes longest to find, so that begins first.
    likely = runs.too_small(cards) if explains else None
    early = pool.submit(runs.advice, likely) if likely else None
    largest = cards[-1]
    plain = [pool.submit(runs.answer, card, Way.OOMPH, largest) for card in cards]
    found_out = [future.result() for future in plain]
    short = [answer.card for answer in found_out if answer.is_too_small]
    helps = bool(short) and explains
    smaller = early if helps else None
    if helps and short[-1] != likely:
        smaller = pool.submit(runs.advice, short[-1])
    peak = pool.submit(runs.at_peak, largest) if explains else None
    guessed = pool.submit(runs.guessed, largest)
    asked = [
        pool.submit(runs.answer, card, way, largest) for card in cards for way in Way
    ]
    for future in asked:
        future.add_done_callback(show)
    # Of these the rescue's takes longest.
    sizes = {
        way: pool.submit(smallest, runs, largest, way, least[way])
        for way in reversed([*least])
    }
    answers = [future.result() for future in asked]
    not_run += [f"{a.card.name} ({a.way.value})" for a in answers if not a.is_known]
    found: dict[Way, Smallest] = {way: sizes[way].result() for way in least}
    unsure = [way for way in least if not found[way].is_known]
    if unsure:
        names = ", ".join(way.value for way in unsure)
        not_run.append(f"the search of the smallest card to its end ({names})")
    return Fit(
        answers,
        in_time(peak, "what holds the memory at the peak"),
        in_time(smaller, "what would help"),
        short[-1] if helps else None,
        in_time(guessed, "other shares of what masks match") or {},
        {way: _least(found[way], answers, way) for way in least},
        frozenset(unsure),
        not_run,
    )


def _least(found: Smallest, answers: Sequence[Answer], way: Way) -> int | None:
    """The smallest card that is known to be large enough; None: none is."""
    like = answers[-1].card.roomy
    fitting = [
        each.card.memory_bytes
        for each in answers
        if each.way is way and each.fits and each.card.roomy == like
    ]
    sizes = [] if found.size_bytes is None else [found.size_bytes]
    return min([*sizes, *fitting], default=None)


def find_largest(
    script: Script,
    cards: Sequence[Target],
    option: Option,
    progress: Progress,
    within_s: float | None = float("inf"),
) -> Varied:
    """The largest value of an option with which a script fits, card by card.

    Args:
        script: What to run.
        cards: Where to, the smallest first.
        option: What is varied.
        progress: Shows what is about to run, and what is known.
        within_s: The time for the question, as :class:`Limit` has it.

    Raises:
        ScriptError: The script fails where memory is not the reason.
        SimulationError: There is no PyTorch that fits the simulated GPU.
    """
    simulate.check(cards[-1].text)
    with Launcher() as launcher:
        limit = Limit(within_s)
        search = Search(launcher, script, option, progress, cards[-1], limit)
        search.begin()
        count, whole = jobs(launcher), search.whole()
        with _workers(limit, count, whole) as pool:

            def largest_by(search: Search) -> list[Largest]:
                asked = [
                    pool.submit(search.largest, card, way)
                    for card in cards
                    for way in Way
                ]
                return [future.result() for future in asked]

            found = largest_by(search)
            if whole is None:
                return Varied(option.name, found)
            late = _end(whole, limit, progress)
            if late is None or late.rises or not whole.needs_more(late):
                return Varied(option.name, found, late)
            longer = largest_by(search.up_to(late, found))
            return Varied(option.name, longer, late, True)


@contextmanager
def _workers(
    limit: Limit, count: int, whole: Whole | None
) -> Iterator[ThreadPoolExecutor]:
    """Threads for runs, which end when this does, be it by an error.

    Args:
        limit: Of the runs.
        count: Of threads.
        whole: What runs beside them, and ends then, too.
    """
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            limit.stop()
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            if whole is not None:
                whole.close()
