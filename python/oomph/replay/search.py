"""Finds the step that a program is in, and tries it in other ways.

Candidates are stretches of statements in the functions on the stack, the innermost
first: the body of a loop, or of a function, from its begin or from where it was. They
run in forked children, one after another, until one is a step: it has a backward, or is
what a loop repeats. A run shows what cannot be read off the source, but takes seconds
of the CPU: so there are at most eight tries, within a budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from oomph.base.log import logger
from oomph.forked import child
from oomph.replay import statements
from oomph.replay.operators.counts import ALL, Counts, Guess
from oomph.replay.outcome import Outcome
from oomph.replay.runs import Run, instead, is_another, unlikeliness, will_do

if TYPE_CHECKING:
    from oomph.replay.change import Change

CANDIDATES = 8  # stretches that are tried
MASKS = 0.03  # of the peak that depends on how many rows masks choose, and is not said
OTHERS = ((False, ""), (False, "last"), (True, ""))  # guesses, where masks share rows


class Search:
    """The step that a stack is in, as far as it can run again.

    Args:
        stack: Frames and lines, as :func:`oomph.replay.statements.stack_of` has them.
        device: Index of the device that counts.
        gone: Addresses of blocks that the step itself has made so far, as it seems;
            and of what a graph may have saved in steps before, the bytes, else 0.
        trains: Whether a backward is wanted, else a step without one is one, too.
        in_forward: Whether forward ran; else the statement that runs now is no begin.
        is_silent: Whether nothing was recorded.
        sizes: Of the blocks that the step had, by file and line.
        seconds: Of the CPU, for all that follows.

    Attributes:
        time_limit: What of them is left.
    """

    def __init__(
        self,
        stack: list[tuple[FrameType, int]],
        device: int,
        gone: dict[int, int],
        trains: bool,
        in_forward: bool,
        is_silent: bool,
        sizes: dict[tuple[str, int], list[int]],
        seconds: float,
    ) -> None:
        self.stack, self.device, self.gone, self.sizes = stack, device, gone, sizes
        self.trains, self.in_forward, self.is_silent = trains, in_forward, is_silent
        frames = [frame for frame, _ in stack]
        self._makes = any(map(statements.makes_module, frames))
        self._makes |= any(map(statements.moves_module, frames))
        self.time_limit = child.TimeLimit(seconds)
        self._found: Run | None = None
        self._session: child.Session | None = None
        self._plain: Outcome | None = None
        self._fewest: tuple[Run, child.Session] | None = None

    def find(self) -> Outcome | None:
        """Runs the step as it is; None if there is none, or it cannot run again.

        A step that trains has a backward; and a step of an optimizer, if one is found
        further out: losses may be summed up over the iterations of a loop within. Any
        other is what a loop repeats, if that keeps something of each iteration. If
        there is none, what calls no model will do, such as a loop over parts of a
        metric, or a function that compares all with all.
        """
        done: set[int] = set()  # stretches that came to their end
        spare: tuple[Run, Outcome, child.Session] | None = None
        tries = 0
        for run in self._in_order():
            if id(run.stretch) in done:
                continue
            if tries == CANDIDATES:
                break
            tries += 1
            session, outcome = self._begin(run)
            if outcome is not None and spare is not None and is_another(run, outcome):
                session.close()
                continue
            other = instead(run, outcome.raw, self._makes) if outcome else None
            if other is not None:
                session.close()
                run = other
                session, outcome = self._begin(run)
            if run.records and outcome is not None and outcome.raw["backwards"]:
                self.trains = True  # what records nothing is a part of it
                self.close()
                self._plain = None
            if outcome is not None and outcome.raw["whole"]:
                done.add(id(run.stretch))
            if outcome is None or not self._is_step(run, outcome):
                if outcome is None or not will_do(run, outcome, spare and spare[1]):
                    session.close()
                    continue
                if spare is not None:
                    spare[2].close()
                spare = run, outcome, session
                continue
            if self._plain is None or self._is_rather(run, outcome):
                self.close()
                self._found, self._plain, self._session = run, outcome, session
            else:
                session.close()
            if self._is_all(run, self._plain):
                break
        if spare is not None and (self._plain is not None or self.trains):
            spare[2].close()
        elif spare is not None:
            self._found, self._plain, self._session = spare
        self._note_what_is_missing()
        if not self._has_bounds():
            self.close()
            self._plain = None
        return self._plain

    def _note_what_is_missing(self) -> None:
        """What is found may be a part, if what is further out had not the time."""
        run, found = self._found, self._plain
        if run is None or found is None or self._is_all(run, found):
            return
        if self.time_limit.was_short:
            self._plain = dataclasses.replace(found, is_part=True)

    def _is_rather(self, run: Run, outcome: Outcome) -> bool:
        """Whether this is the step, and not what was found before."""
        assert self._found is not None and self._plain is not None
        if self.trains:
            return run.place < self._found.place or bool(outcome.raw["optimized"])
        return outcome.grows_bytes > 0 and self._plain.grows_bytes == 0

    def _is_all(self, run: Run, found: Outcome) -> bool:
        """Whether no more of the step is to be sought further out."""
        if self.trains:
            return not found.raw["optimizers"] or bool(found.raw["optimized"])
        is_whole = run.stretch.is_loop or not run.stretch.repeats
        return is_whole or bool(found.raw["cache"])

    def _has_bounds(self) -> bool:
        """Whether it is known between what it is, where masks of unknown rows decide.

        Of all guesses those stay with which it comes to most and to least.
        """
        plain, found, session = self._plain, self._found, self._session
        if plain is None or not plain.raw["uncounted"]:
            return True
        assert found is not None and session is not None
        tried = [(plain, found, session)]
        for guess in _guesses(plain.raw["shares"]):
            run = dataclasses.replace(found, guess=guess)
            session, outcome = self._begin(run)
            if outcome is not None:
                tried.append((outcome, run, session))
            if outcome is None or outcome.raw["whole"] != plain.raw["whole"]:
                for _, _, session in tried:
                    session.close()
                return False
        tried.sort(key=lambda each: each[0].peak_bytes)
        least, *others, most = tried
        if least[0].peak_bytes >= (1 - MASKS) * most[0].peak_bytes:
            others.append(least)
        else:
            self._fewest = least[1:]
        for _, _, session in others:
            session.close()
        self._plain, self._found, self._session = most
        is_part = any(outcome.is_part for outcome, _, _ in tried)
        fewest = least[0] if self._fewest is not None else None
        self._plain = dataclasses.replace(most[0], is_part=is_part, _fewest=fewest)
        return True

    def _is_step(self, run: Run, outcome: Outcome) -> bool:
        if self.trains:
            return bool(outcome.raw["backwards"])
        stretch, raw = run.stretch, outcome.raw
        is_part = stretch.is_loop or not stretch.is_script
        return bool(raw["whole"] and raw["called"] and is_part)

    def attempt(self, changes: list[Change]) -> list[Outcome | None]:
        """Runs the step that was found with changes; None for what does not work."""
        if self._session is None or self._found is None or not changes:
            return [None] * len(changes)
        assert self._plain is not None
        wanted = [dataclasses.asdict(change) for change in changes]
        found = self._with(wanted, self._found, self._session)
        if self._fewest is None:
            return found
        fewest = self._with(wanted, *self._fewest)
        return [
            most.down_to(least) if most is not None and least is not None else None
            for most, least in zip(found, fewest, strict=True)
        ]

    def _with(
        self, wanted: list[dict[str, Any]], run: Run, session: child.Session
    ) -> list[Outcome | None]:
        assert self._plain is not None
        if not self._plain.grows_bytes and not run.joined:
            raws = session.ask(wanted)
        else:  # what the iterations without the change left would be in the way
            raws = [self._first_of(run, change) for change in wanted]
        found = [self._outcome(run, raw) for raw in raws]
        return [o if o is not None and self._is_like_found(o) else None for o in found]

    def _is_like_found(self, outcome: Outcome) -> bool:
        """Whether a step with a change came as far as the step without."""
        assert self._found is not None and self._plain is not None
        came_as_far = outcome.raw["whole"] or not self._plain.raw["whole"]
        if self._is_step(self._found, outcome):
            return came_as_far
        return came_as_far and not self.trains and will_do(self._found, outcome)

    def close(self) -> None:
        """Ends what still runs."""
        if self._session is not None:
            self._session.close()
        if self._fewest is not None:
            self._fewest[1].close()

    @property
    def stretch(self) -> statements.Stretch:
        """The statements of the step that was found."""
        assert self._found is not None
        return self._found.stretch

    def _in_order(self) -> list[Run]:
        """The candidates, but of a step that trains the likely ones first."""
        runs = list(self._candidates())
        if not self.trains:
            return runs
        # Others take their time, and are mostly no step.
        runs.sort(key=lambda run: unlikeliness(run.stretch))
        to_come = [{other.place for other in runs[i:]} for i in range(len(runs))]
        return [
            dataclasses.replace(run, is_early=min(places) < run.place)
            for run, places in zip(runs, to_come, strict=True)
        ]

    def _candidates(self) -> Iterator[Run]:
        place = 0
        innermost: set[FrameType] = set()
        for stretch in statements.stretches(self.stack):
            is_first = stretch.frame not in innermost
            innermost.add(stretch.frame)
            starts = []
            if stretch.is_loop or (is_first and not stretch.is_script):
                starts.append(0)
            now = stretch.now if is_first or stretch.is_script else stretch.undone()
            if self.in_forward and now not in starts:
                starts.append(now)
            for first in starts:
                yield Run(stretch, first, place)
                place += 1

    def _begin(self, run: Run) -> tuple[child.Session, Outcome | None]:
        """Runs statements as they are; the session can run them again."""
        session = self._session_of(run, None)
        return session, self._outcome(run, session.first)

    def _first_of(self, run: Run, change: dict[str, Any]) -> Any | None:
        """Runs statements with a change from the begin."""
        with self._session_of(run, change) as session:
            return session.first

    def _session_of(self, run: Run, change: dict[str, Any] | None) -> child.Session:
        from oomph.replay.operators.besides import Card
        from oomph.replay.position import Position

        card = Card.of(self.device)  # the child cannot ask
        counts = Counts(self.sizes, run.guess)
        position = Position(_within(self.stack, run.stretch.frame))

        left = self.time_limit.left_s
        # One further out must not take all the time.
        is_first_try = change is None and run.guess == ALL
        is_further = is_first_try and (self._plain is not None or run.is_early)
        seconds = left / 4 if is_further else left

        def begin() -> tuple[Any, Any]:
            from oomph.replay.step import Replay

            is_first = bool(run.joined) and not any(n for _, (_, n) in run.joined)
            iterations = 2 if run.stretch.repeats and not is_first else 1
            replay = Replay(
                run.stretch,
                run.first,
                iterations,
                self.device,
                card,
                counts,
                self.gone,
                self.in_forward,
                self.is_silent and not run.records,
                self.trains,
                run.answer,
                position,
                dict(run.joined),
                seconds,
            )
            return replay.begin(change), replay.again

        return child.Session(begin, self.time_limit, seconds)

    def _outcome(self, run: Run, raw: dict[str, Any] | None) -> Outcome | None:
        where = f"{run.stretch.frame.f_code.co_name}, line {run.stretch.line}"
        if raw is None or not raw["peaks"]:
            logger.debug("no step could run again in %s", where)
            return None
        seen = raw["error"] or raw["peaks"]
        logger.debug("a step ran again in %s: %s", where, seen)
        return Outcome.of(raw)


def _guesses(shares: list[int]) -> list[Guess]:
    """What else masks may choose than all, and of shared rows the first one all."""
    known = tuple(shares)
    if max(known, default=1) < 2:
        return [Guess(few=True)]
    return [Guess(few, leads, known) for few, leads in OTHERS]


def _within(
    stack: list[tuple[FrameType, int]], outermost: FrameType
) -> list[tuple[FrameType, int]]:
    """A frame and the calls that it waited for."""
    frames = [frame for frame, _ in stack]
    return stack[: frames.index(outermost) + 1]
