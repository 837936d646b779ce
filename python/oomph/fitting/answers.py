"""On which cards a script fits, why not, and what would help."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from oomph import simulate
from oomph.base.sizes import format_size
from oomph.fitting import report
from oomph.fitting.cards import Target
from oomph.fitting.measuring import Script, Way
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from oomph.fitting.progress import Progress
from oomph.fitting.runs import Answer, Runs, jobs, smallest
from oomph.fitting.varying import Largest, Option, Search


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
    """

    answers: list[Answer]
    peak: Record | None
    smaller: Record | None
    smaller_card: Target | None
    guessed: dict[float, Record]
    smallest: dict[Way, int | None]

    def fits(self, way: str = "rescue") -> bool:
        """Whether it fits on all cards.

        Args:
            way: Who gives out their memory: ``"native"`` (PyTorch's allocator),
                ``"expandable"`` (with expandable segments), ``"oomph"`` (oomph without
                offload) or ``"rescue"`` (oomph).

        Returns:
            Whether it does.

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
) -> Fit:
    """Whether a script fits each card in each way, and what would help.

    Args:
        script: What to run.
        cards: Where to, the smallest first.
        progress: Shows what is about to run, and what is known.
        is_trace: Whether it only asks for memory: nothing can be said of its source,
            and not how far a rescue goes.
        brief: Whether to leave out what would help, and the smallest cards.

    Raises:
        ScriptError: The script fails where memory is not the reason.
        SimulationError: There is no PyTorch that fits the simulated GPU.
    """
    simulate.check(cards[-1].text)
    with Launcher() as launcher:
        full_card = None if is_trace else cards[-1]
        runs = Runs(launcher, script, progress, full_card=full_card)
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
    with _workers(runs.stop, count) as pool:
        least = () if brief else tuple(Way)
        if is_trace:
            least = tuple(way for way in least if way is not Way.RESCUE)
        return _find(runs, cards, pool, not (is_trace or brief), least)


def _find(
    runs: Runs,
    cards: Sequence[Target],
    pool: ThreadPoolExecutor,
    explains: bool,
    least: Sequence[Way],
) -> Fit:
    """As :func:`find_by`, with the smallest cards of some ways."""

    def show(future: Future[Answer]) -> None:
        if not future.cancelled() and future.exception() is None:
            runs.progress.known(report.verdict(future.result()))

    # What would help takes longest to find, so that begins first.
    likely = runs.too_small(cards) if explains else None
    early = pool.submit(runs.on, likely, Way.OOMPH, True) if likely else None
    plain = [(card, pool.submit(runs.answer, card, Way.OOMPH)) for card in cards]
    ran_out = [(card, a.result()) for card, a in plain if not a.result().fits]
    short = [card for card, answer in ran_out if not answer.failed]
    helps = bool(short) and explains
    smaller = early if helps else None
    if helps and short[-1] != likely:
        smaller = pool.submit(runs.on, short[-1], Way.OOMPH, True)
    peak = pool.submit(runs.at_peak, cards[-1]) if explains else None
    guessed = pool.submit(runs.guessed, cards[-1])
    asked = [pool.submit(runs.answer, card, way) for card in cards for way in Way]
    for future in asked:
        future.add_done_callback(show)
    # Of these the rescue's takes longest.
    sizes = {w: pool.submit(smallest, runs, cards[-1], w) for w in reversed(least)}
    return Fit(
        [future.result() for future in asked],
        peak.result() if peak else None,
        smaller.result() if smaller else None,
        short[-1] if helps else None,
        guessed.result(),
        {way: sizes[way].result() for way in least},
    )


def find_largest(
    script: Script,
    cards: Sequence[Target],
    option: Option,
    progress: Progress,
) -> list[Largest]:
    """The largest value of an option with which a script fits, card by card.

    Args:
        script: What to run.
        cards: Where to, the smallest first.
        option: What is varied.
        progress: Shows what is about to run, and what is known.

    Raises:
        ScriptError: The script fails where memory is not the reason.
        SimulationError: There is no PyTorch that fits the simulated GPU.
    """
    simulate.check(cards[-1].text)
    with Launcher() as launcher:
        search = Search(launcher, script, option, progress, cards[-1])
        search.begin()
        with _workers(search.stop, jobs(launcher)) as pool:
            asked = [pool.submit(search.largest, c, way) for c in cards for way in Way]
            return [future.result() for future in asked]


@contextmanager
def _workers(stop: threading.Event, count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for runs, which end when this does, be it by an error."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
