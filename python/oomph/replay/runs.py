"""Which statements are run in search of a step, and what their outcome says of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from oomph.replay import statements
from oomph.replay.operators.counts import ALL, Guess
from oomph.replay.outcome import GROWS, Outcome


@dataclass(frozen=True)
class Run:
    """Statements, and the index of the one to begin with.

    Attributes:
        answer: What they get when they ask something that nobody knows.
        guess: How many rows masks choose of which nothing is known.
        joined: Tensors that the step has joined to, as ``Tracker.rejoined`` has them.
        place: Among the candidates, from the innermost on.
        is_early: Whether some that are further in are tried after it.
        records: Whether they record a graph, though a call of theirs did not.
    """

    stretch: statements.Stretch
    first: int
    place: int
    is_early: bool = False
    answer: bool = True
    guess: Guess = ALL
    joined: tuple[tuple[int, tuple[int, int]], ...] = ()
    records: bool = False


def instead(run: Run, raw: dict[str, Any], makes: bool) -> Run | None:
    """How to run them rather: from another begin, answered otherwise, or with less.

    Args:
        run: The statements.
        raw: Of their outcome.
        makes: What failed made a model, or moved one, so that it is not there yet.
    """
    other = run
    first = run.stretch.after(raw["made_line"])
    if makes:
        first = min(first, run.stretch.now)
    if raw["made_line"] and not run.stretch.is_loop and first != run.first:
        other = dataclasses.replace(other, first=first)
    if raw["guessed"] and raw["error"] and not raw["whole"]:
        other = dataclasses.replace(other, answer=False)
    if raw["lacks_graph"]:
        other = dataclasses.replace(other, records=True)
    if raw["optimized"] and run.stretch.is_called:  # the next begins with these states
        stretch = dataclasses.replace(run.stretch, repeats=True, is_called=False)
        other = dataclasses.replace(other, stretch=stretch)
    if raw["rejoined"]:
        other = dataclasses.replace(other, joined=tuple(raw["rejoined"]))
    return other if other != run else None


def is_another(run: Run, outcome: Outcome) -> bool:
    """Whether it trains, and is in no loop: what failed further in is work before."""
    trains = outcome.raw["backwards"] or outcome.raw["lacks_graph"]
    return bool(trains) and not (run.stretch.repeats or run.stretch.is_called)


def will_do(run: Run, outcome: Outcome, inner: Outcome | None = None) -> bool:
    """Whether it may be all that there is: work whose iterations are alike.

    A loop, or statements that call no model. What makes models is none: those are there
    before the work begins.

    Args:
        run: The statements.
        outcome: Of them.
        inner: Of such work within; only a loop that comes to more is rather it.
    """
    is_forward = not outcome.raw["backwards"] and outcome.raw["whole"]
    is_more = inner is None or (
        run.stretch.is_loop and outcome.peak_bytes > (1 + GROWS) * inner.peak_bytes
    )
    is_alike = is_forward and not outcome.grows_bytes
    is_loop = run.stretch.is_loop or not outcome.raw["called"]
    is_work = is_loop and not outcome.raw["made_line"]
    return bool(is_work and is_alike and is_more)


def unlikeliness(stretch: statements.Stretch) -> tuple[bool, bool]:
    """To be a step that trains: its function goes back, and it has an optimizer's step.

    As far as names show, which decide only what is tried first.
    """
    names = stretch.frame.f_code.co_names
    return not any("backward" in name for name in names), not stretch.calls("step")
