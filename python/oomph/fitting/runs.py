"""Runs of a script on cards, as few as answer for certain."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from oomph.fitting.answer import Answer
from oomph.fitting.cards import Target
from oomph.fitting.limit import PATIENCE, Late, Limit
from oomph.fitting.measuring import Place, Script, Way, measure
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.process.record import Record
from oomph.fitting.progress import Progress
from oomph.fitting.reasons import reason
from oomph.fitting.turns import Turns
from oomph.fitting.whole import Whole
from oomph.memory import host

RESERVE_BYTES = 1 << 30  # oomph keeps up to this for others on a card that is full
PAGE_BYTES = 2 << 20
SHARES = 0.01, 1.0  # of the elements that match what nobody knows: few, and all
PYTORCHS = (Way.NATIVE, Way.EXPANDABLE)
_PATIENCE_S = 30.0  # with a run on a card, at least
_NOT_RUN = Record("late", 0)


class ScriptError(RuntimeError):
    """The script failed for another reason than a card that is too small.

    Attributes:
        record: Of that run.

    Example:
        >>> try:
        ...     oomph.fit(["-m", "no_such_module"], gpus="1GiB")
        ... except oomph.ScriptError as error:
        ...     print(error)
        on 1GiB without a limit the script failed with exit code 1. What it printed ...
    """

    def __init__(self, record: Record, card: str) -> None:
        said = f". What it printed at last:\n{record.output}" if record.output else ""
        super().__init__(f"on {card} {reason(record)}{said}")
        self.record = record


class Runs:
    """Runs of one script, each in one place, and at most once.

    Args:
        launcher: What starts it.
        script: What is run.
        progress: Shows what is about to run.
        limit: Ends what runs; None: nothing does.
        full_card: On which :meth:`goes_on` finds out; None: the script never does.
        found_out: Where it keeps the answer, which others may share.

    Attributes:
        script: As it is run next: the first run, which is alone, may find out more.
    """

    def __init__(
        self,
        launcher: Launcher,
        script: Script,
        progress: Progress,
        limit: Limit | None = None,
        full_card: Target | None = None,
        found_out: list[bool] | None = None,
    ) -> None:
        self._launcher, self.script = launcher, script
        self._asked, self.progress = script, progress
        self._full_card = full_card
        self._goes_on = [] if found_out is None else found_out
        self.limit = limit or Limit()
        self._done: dict[Place, Future[Record]] = {}
        self._as: dict[tuple[int, ...], Target] = {}  # the first of each trace
        self._turns = Turns()
        self._seconds = 0.0  # that the first run took, which has no limit
        self._lock = threading.Lock()
        self._before: Runs | None = None  # up to fewer steps
        self._late = _NOT_RUN  # up to those of these, without a limit

    def up_to(self, late: Record) -> Runs:
        """Runs of the same script up to a later step, as it needs more there.

        Args:
            late: The run without a limit that has shown it.
        """
        script = replace(self._asked, extent=Extent.whole(late.enough))
        found = Runs(
            self._launcher,
            script,
            self.progress,
            self.limit,
            self._full_card,
            self._goes_on,
        )
        found._before, found._late, found._seconds = self, late, late.seconds
        return found

    def whole(self, card: Target) -> Whole | None:
        """The script to its end and without a limit, which begins now.

        None: no more steps are asked for than were seen, or that is the whole script,
        or host memory has no room for one more.
        """
        first = self.roomy(card, Way.OOMPH)
        has_seen_all = first.ending != "steps" or not self._asked.extent.looks_on
        if has_seen_all or jobs(self._launcher, 2) < 2:
            return None
        script = replace(self._asked, extent=Extent.whole())
        place = Place(card.roomy, Way.OOMPH)
        return Whole(self._launcher, script, place, self._turns, first)

    def run(self, place: Place, name: str, is_patient: bool = True) -> Record:
        """The record of a run; waits for it if it is going on.

        Args:
            place: Where it is.
            name: What is said of it.
            is_patient: Whether it may take as long as the script; else it is given up
                once it has taken four times as long as the first one.

        Raises:
            ScriptError: The script failed, and not for memory.
            Late: The time for the question was up.
        """
        with self._lock:
            is_new = place not in self._done
            future = self._done.setdefault(place, Future())
        if is_new:
            try:
                if self.limit.is_late():
                    raise Late
                self.progress.runs(f"on {name} ({place.way.value})")
                record = self._measure(place, is_patient)
                self._learn(record)
                future.set_result(record)
            except BaseException as error:
                future.set_exception(error)
        record = future.result()
        sees_nothing = record.unseen > 0 and record.allocated_bytes == 0
        sees_nothing |= record.kept_file != "" and record.steps == 0
        if record.ending == "oom" or (record.came_through and not sees_nothing):
            return record
        raise ScriptError(record, name)

    def _measure(self, place: Place, is_patient: bool) -> Record:
        """One that fails beside others is run again, alone: it may want a port."""
        script = self.script
        if place.has_more:
            script = replace(script, extent=script.extent.with_more())
        if not is_patient and self._seconds:
            longest = max(_PATIENCE_S, PATIENCE * self._seconds)
            script = replace(script, seconds=min(script.seconds, longest))
        with self._turns.beside() as others:
            record = measure(self._launcher, script, place, self.limit.is_set)
        if record.failed and others[0] and not self.limit.is_set():
            with self._turns.alone():
                record = measure(self._launcher, script, place, self.limit.is_set)
        has_ended = record.came_through or record.ending == "oom"
        if self.limit.is_late() and not has_ended:
            raise Late
        return record

    def _learn(self, record: Record) -> None:
        """What one run shows of others: how many steps are enough, and what is not."""
        self.limit.begin()
        self._seconds = self._seconds or record.seconds
        extent = self.script.extent.learned(record)
        self.script = replace(self.script, extent=extent)

    def roomy(self, card: Target, way: Way) -> Record:
        """The run with all the memory that the script wants.

        PyTorch's allocator does the same on all cards on which the script asks for the
        same: one stands for these. Times depend on the card, and so does what others
        take of it, such as CUDA's context.
        """
        if way not in PYTORCHS:
            late = self._late_on(card)
            place, name = Place(card.roomy, way), f"{card.name} without a limit"
            return late or self.run(place, name)
        here = self.roomy(card, Way.OOMPH)
        with self._lock:
            card = self._as.setdefault(tuple(here.trace), card)
        record = self.run(Place(card.roomy, way), f"{card.name} without a limit")
        more = here.other_bytes - self.roomy(card, Way.OOMPH).other_bytes
        return replace(record, other_bytes=record.other_bytes + more)

    def _late_on(self, card: Target) -> Record | None:
        """What the whole script needs on a card; None: it may ask for more there."""
        if self._before is None or self._full_card is None:
            return None
        here = self._before.roomy(card, Way.OOMPH)
        if here.trace != self._before.roomy(self._full_card, Way.OOMPH).trace:
            return None
        late = self._late
        return replace(
            late,
            allocated_bytes=max(here.allocated_bytes, late.allocated_bytes),
            reserved_bytes=max(here.reserved_bytes, late.reserved_bytes),
            other_bytes=here.other_bytes,
            step_ms=here.step_ms,
        )

    def _early_on(self, place: Place) -> Record | None:
        """The run up to fewer steps, if memory ran out in these."""
        done = {} if self._before is None else self._before._done
        for each in (place, replace(place, has_more=True)):
            future = done.get(each)
            if not future or not future.done() or isinstance(future.exception(), Late):
                continue
            record = future.result()
            if record.ending == "oom":
                return record
        return None

    def at_peak(self, card: Target) -> Record | None:
        """The run on a card that is full just at the script's peak, which says why.

        None: the script fails there for another reason than memory or time.
        """
        peak = self.roomy(card, Way.OOMPH).allocated_bytes
        limit = f"device_limit:{max(PAGE_BYTES, peak - 2 * PAGE_BYTES)}"
        place = Place(card.roomy, Way.OOMPH, limit)
        name = f"{card.name}, a little less than its peak"
        try:
            return self.run(place, name, False)
        except ScriptError as error:
            return error.record if error.record.ending == "time" else None

    def guessed(self, card: Target) -> dict[float, Record]:
        """Runs without a limit in which another share of the elements matches.

        By share; of one in which the script fails, what that shows. Empty: nothing is
        guessed.
        """
        if self.roomy(card, Way.OOMPH).guesses == 0:
            return {}
        return {share: self._with_share(card, share) for share in SHARES}

    def _with_share(self, card: Target, share: float) -> Record:
        place = Place(f"{card.roomy},matches={share:g}", Way.OOMPH)
        try:
            return self.run(place, f"{card.name}, masks match {share:.0%}", False)
        except ScriptError as error:
            return error.record

    def goes_on(self) -> bool:
        """Whether the script goes on after an out-of-memory error, with less."""
        if not self._goes_on:
            full = None if self._full_card is None else self.at_peak(self._full_card)
            self._goes_on.append(full is not None and full.ending != "oom")
        return self._goes_on[0]

    def is_too_small(self, card: Target) -> bool:
        """Whether a card is too small without offload, as the run without a limit says.

        False as well if that does not decide it.
        """
        roomy = self.roomy(card, Way.OOMPH)
        return _known(roomy, card, Way.OOMPH) is False and not self.goes_on()

    def too_small(self, cards: Sequence[Target]) -> Target | None:
        """The largest card that is too small without offload, as one run says of all.

        Args:
            cards: The smallest first.

        Returns:
            The card; None: all are large enough, or one run does not decide it.
        """
        roomy = self.roomy(cards[-1], Way.OOMPH)
        known = [_known(roomy, card, Way.OOMPH) for card in cards]
        short = [card for card, fits in zip(cards, known, strict=True) if not fits]
        return short[-1] if short and None not in known else None

    def on(self, card: Target, way: Way, forecasts: bool = False) -> Record:
        """The run on a card itself, whose error may say what would help."""
        limits = f"host_limit:{card.host_bytes // 2}" if way is Way.RESCUE else ""
        place = Place(card.text, way, limits, forecasts)
        return self._early_on(place) or self.run(place, card.name, forecasts)

    def advice(self, card: Target) -> Record | None:
        """The run on a card without offload, whose error says what would help.

        None: the script fails there for another reason.
        """
        try:
            return self.on(card, Way.OOMPH, True)
        except ScriptError:
            return None

    def answer(self, card: Target, way: Way, roomiest: Target | None = None) -> Answer:
        """Whether the script fits a card in one way.

        Args:
            card: The card.
            way: Who gives out its memory.
            roomiest: The card of the first run, which stands for those without a limit
                that there was no time for; None: who asks sees to that.

        Raises:
            Late: The time for the question was up, and nothing stands for a run.
        """
        try:
            return self._answer(card, way)
        except Late:
            if roomiest is None:
                raise
            first = self.roomy(roomiest, Way.OOMPH)
            return Answer(card, way, False, False, _NOT_RUN, first)

    def _answer(self, card: Target, way: Way) -> Answer:
        roomy = self.roomy(card, Way.OOMPH if way is Way.RESCUE else way)
        known = _known(roomy, card, way)
        has_more = way is Way.NATIVE and bool(self.script.extent.ahead_more)
        if (known and has_more) or (known is False and self.goes_on()):
            known = None
        if known is not None:
            return Answer(card, way, known, False, roomy, roomy)
        if way is Way.RESCUE:
            plain = self._answer(card, Way.OOMPH)
            if plain.fits and not plain.caught:  # who catches errors gets others now
                return Answer(card, way, True, plain.was_run, plain.record, roomy)
        try:
            record = (has_more and self._with_more(card)) or self.on(card, way)
        except ScriptError as error:  # with more memory it came through
            if not error.record.failed and error.record.ending != "time":
                raise
            record = error.record
        return Answer(card, way, record.came_through, True, record, roomy)

    def _with_more(self, card: Target) -> Record | None:
        """The run with PyTorch's allocator and all larger batches.

        It may come to pieces by those that are left out elsewhere. None: there is no
        time for it.
        """
        try:
            place = Place(card.text, Way.NATIVE, has_more=True)
            return self.run(place, f"{card.name}, with more batches")
        except (Late, ScriptError):
            return None


def _known(roomy: Record, card: Target, way: Way) -> bool | None:
    """What the run without a limit says for certain of a card.

    An allocator does the same on a smaller card until that is full, a rescue until the
    reserve is touched. None does with less than what the script holds.
    """
    if roomy.asks_size or roomy.failures:
        return None
    reserve = RESERVE_BYTES if way is Way.RESCUE else 0
    if roomy.needed_bytes + reserve <= card.memory_bytes:
        return True
    is_too_much = roomy.allocated_bytes + roomy.other_bytes > card.memory_bytes
    return False if is_too_much and way is not Way.RESCUE else None


def jobs(launcher: Launcher, most: int | None = None) -> int:
    """How many runs this machine has room for at a time, by the largest so far.

    Args:
        launcher: Of these.
        most: No more than so many; None: than this process may use cores.
    """
    most = most or len(os.sched_getaffinity(0))
    return max(1, min(most, host.available_bytes() // launcher.largest_bytes))
