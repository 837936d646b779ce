"""The largest value of an option with which a script still fits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oomph.fitting.answer import Answer
from oomph.fitting.cards import Target
from oomph.fitting.limit import Late, Limit
from oomph.fitting.measuring import Script, Way
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from oomph.fitting.progress import Progress
from oomph.fitting.runs import Runs
from oomph.fitting.whole import Whole

_COUNT_MAX = 1 << 20  # values of a range


@dataclass(frozen=True)
class Option:
    """What is varied.

    Attributes:
        name: An option of the script such as ``--batch-size``, an override such as
            ``train.batch_size`` (Hydra, OmegaConf), or a variable of the environment,
            which is written in capitals.
        values: From the one that needs least memory on.
    """

    name: str
    values: Sequence[str]


def parse(text: str) -> Option:
    """Reads ``NAME=LOW..HIGH`` or ``NAME=VALUE,VALUE…``.

    Raises:
        ValueError: It is neither; the text says what is allowed.
    """
    name, _, wanted = text.partition("=")
    limits = re.fullmatch(r"(\d+)\.\.(\d+)", wanted)
    if limits is not None:
        low, high = int(limits[1]), int(limits[2])
        if name and low <= high and high - low < _COUNT_MAX:
            return Option(name, [*map(str, range(low, high + 1))])
    values = [value.strip() for value in wanted.split(",")]
    if not name or limits is not None or not all(values):
        raise ValueError(
            f"--vary {text}: write NAME=LOW..HIGH or NAME=VALUE,VALUE, the value that "
            "needs least memory first, such as --batch-size=1..512"
        )
    return Option(name, values)


def with_value(script: Script, name: str, value: str) -> Script:
    """A script whose option has another value: in its arguments, or added to them."""
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        return replace(script, variables={**script.variables, name: value})
    arguments = list(script.arguments)
    for place, argument in enumerate(arguments):
        if argument.partition("=")[0] == name and "=" in argument:
            arguments[place] = f"{name}={value}"
            break
        if argument == name and place + 1 < len(arguments):
            arguments[place + 1] = value
            break
    else:
        arguments += [name, value] if name.startswith("-") else [f"{name}={value}"]
    return replace(script, arguments=tuple(arguments))


@dataclass(frozen=True)
class Largest:
    """The largest value with which a script fits a card in one way.

    Attributes:
        card: The card.
        way: Who gives out its memory.
        value: The value; None: it fits with none that was run.
        is_last: Whether there was no larger one to try.
        roomy: The run with that value and without a limit; None: there is no value.
        caught: Whether the script caught an out-of-memory error, and went on.
        is_known: Whether no larger value fits; else the time was up before.
        most: Then the largest that may fit; None: nothing is known.
    """

    card: Target
    way: Way
    value: str | None
    is_last: bool
    roomy: Record | None
    caught: bool
    is_known: bool = True
    most: str | None = None


@dataclass(frozen=True)
class Varied:
    """What is known of an option.

    Attributes:
        name: Its name.
        largest: Card by card, and way by way.
        whole: The script to its end with the smallest value, as
            :class:`~oomph.fitting.answers.Fit` has it.
        grows: As there.
    """

    name: str
    largest: Sequence[Largest]
    whole: Record | None = None
    grows: bool = False


class Search:
    """Looks for the largest values, card by card.

    What a script needs is taken to grow with the value.

    Args:
        launcher: What starts it.
        script: What is run.
        option: What is varied.
        progress: Shows what is about to run.
        card: The largest.
        limit: Ends the search; None: nothing does.
    """

    def __init__(
        self,
        launcher: Launcher,
        script: Script,
        option: Option,
        progress: Progress,
        card: Target,
        limit: Limit | None = None,
    ) -> None:
        self._launcher, self._card = launcher, card
        self._script, self._option = script, option
        self._progress = progress
        self.limit = limit or Limit()
        self._runs: dict[int, Runs] = {}
        self._last: dict[tuple[Target, Way], int] = {}  # none fits that is larger
        self._found_out: list[bool] = []  # whether the script goes on with less
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Runs the smallest alone, which shows how much host memory a run takes."""
        first = self._at(0)
        first.roomy(self._card, Way.OOMPH)
        learned = first.script.extent
        differs = bool(learned.ahead)  # another value has other batches
        until = 0 if differs else learned.until
        extent = replace(
            self._script.extent, looks_on=False, until=until, looks_ahead=differs
        )
        self._script = replace(self._script, extent=extent)

    def whole(self) -> Whole | None:
        """The script with the smallest value, as :meth:`Runs.whole` has it."""
        return self._at(0).whole(self._card)

    def up_to(self, late: Record, found: Sequence[Largest]) -> Search:
        """The same search, by runs that last longer.

        Args:
            late: The whole script with the smallest value. If it has ended, runs of
                other values last to their ends as well, else for as many steps as it.
            found: What fewer steps allow, which more do not exceed.
        """
        until = 0 if late.ended else late.enough
        script = replace(self._script, extent=Extent.whole(until))
        more = Search(
            self._launcher, script, self._option, self._progress, self._card, self.limit
        )
        more._runs[0] = self._at(0).up_to(late)
        values = self._option.values
        for each in found:
            last = -1 if each.value is None else values.index(each.value)
            if not each.is_known:
                last = len(values) - 1 if each.most is None else values.index(each.most)
            more._last[each.card, each.way] = last
        return more

    def largest(self, card: Target, way: Way) -> Largest:
        """The largest value with which it fits."""
        name, last = self._option.name, len(self._option.values) - 1
        values = self._option.values[: self._last.get((card, way), last) + 1]
        held: dict[int, Answer] = {}
        failed: list[int] = []

        def fits(place: int) -> bool:
            runs = self._at(place)
            if way is Way.RESCUE or not runs.is_too_small(card):
                answer = runs.answer(card, way)
                if answer.fits:
                    held[place] = answer
                    return True
            failed.append(place)
            return False

        try:
            best = last_that(
                fits, len(values), lambda low, high: self._guess(card, way, low, high)
            )
            most = None
        except Late:
            best = max(held, default=None)
            most = min(failed, default=len(values)) - 1
        which = f"{card.name} ({way.value})"
        found = None if best is None else held[best]
        value = None if best is None else values[best]
        if most is not None:
            self._progress.known(f"{which}: there is no time left")
        elif value is None:
            self._progress.known(f"{which}: no {name} fits")
        else:
            self._progress.known(f"{which}: the largest {name} is {value}")
        return Largest(
            card,
            way,
            value,
            best == last,
            None if found is None else found.roomy,
            found is not None and found.caught,
            most is None,
            values[most] if most is not None and (held or failed) else None,
        )

    def _at(self, place: int) -> Runs:
        with self._lock:
            if place not in self._runs:
                name, value = self._option.name, self._option.values[place]
                script = with_value(self._script, name, value)
                progress = self._progress.of(f"{name}={value}")
                self._runs[place] = Runs(
                    self._launcher,
                    script,
                    progress,
                    self.limit,
                    self._card,
                    self._found_out,
                )
            return self._runs[place]

    def _guess(self, card: Target, way: Way, low: int, high: int) -> int:
        """Where the card would be full if memory grew evenly between two places."""
        if way is Way.RESCUE:
            return (low + high) // 2
        least, most = (
            self._at(place).roomy(card, Way.OOMPH).needed_bytes for place in (low, high)
        )
        at_low = self._at(low).roomy(card, way).needed_bytes
        wanted = card.memory_bytes * least / max(1, at_low)  # by what oomph needs
        share = (wanted - least) / max(1, most - least)
        return low + int(share * (high - low))


def last_that(
    holds: Callable[[int], bool], count: int, guess: Callable[[int, int], int]
) -> int | None:
    """The last place at which something holds that holds up to some place.

    Args:
        holds: Asked of few places.
        count: Of places.
        guess: Where it may be, between one at which it holds and one at which it does
            not.

    Returns:
        The place; None: it holds at none.

    Example:
        >>> last_that(lambda place: place < 5, 100, lambda low, high: 7)
        4
    """
    if count == 0 or not holds(0):
        return None
    if holds(count - 1):
        return count - 1
    low, high = 0, count - 1
    is_guessed = True
    while high - low > 1:
        tried = guess(low, high) if is_guessed else (low + high) // 2
        tried = min(max(tried, low + 1), high - 1)
        width = high - low
        if holds(tried):
            low = tried
        else:
            high = tried
        is_guessed = not is_guessed or (high - low) * 2 <= width
    return low
