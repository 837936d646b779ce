"""What is planned for each kind of step, and which kind one is, by how it begins.

Batches differ in length, a GAN has two turns: the next step is often not like the last.
So the plans of the last few kinds of steps are kept. What a step saves first says
which of them it follows: that whose step had saved as many bytes up to the same place.
If none had, the nearest serves, as if all that it saved had been so much larger or
smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import sub

from oomph.base.range_max import RangeMax
from oomph.offload.leavers import Chosen
from oomph.offload.record import Step

_KINDS = 8  # that are remembered,
_REMEMBERED_STEPS = 64  # for so many steps
SAME = 0.02  # of what was saved: steps of a kind differ by less


@dataclass(frozen=True)
class Predicted:
    """Blocks that go to the host at once.

    Attributes:
        block_bytes: Those of this size do; 0: none does.
        part_bytes: Of each of them, what lies there at least.
    """

    block_bytes: int = 0
    part_bytes: int = 0

    def after_rescues(self, wanted_bytes: int, had_bytes: int) -> Predicted:
        """For the step after one in which blocks fell back all the same.

        Args:
            wanted_bytes: What is to lie there, as far as it is known.
            had_bytes: What lay there as that step went on, if the next is to be as it
                was; 0: it is not.
        """
        if self.part_bytes < self.block_bytes:  # that was too little
            wanted_bytes = max(wanted_bytes, self.block_bytes)
            had_bytes = 0
        return Predicted(wanted_bytes, min(had_bytes or wanted_bytes, wanted_bytes))


@dataclass
class StepPlan:
    """What is to be away in a step.

    Attributes:
        like: What the step is expected to be.
        chosen: What leaves of what it saves.
        target_bytes: What is to be away at the peak.
        need_bytes: The most that it is expected to need.
        predicted: Blocks that go to the host at once.
        state_bytes: Optimizers' state that is to be on the host.
        factor: By how much larger it is expected to be than the step that it is known
            from.
        rest_bytes: Most in use at each of its events, but for what has been fetched.
    """

    like: Step = field(default_factory=Step)
    chosen: Chosen = field(default_factory=Chosen)
    target_bytes: float = 0.0
    need_bytes: int = 0
    predicted: Predicted = field(default_factory=Predicted)
    state_bytes: int = 0
    factor: float = 1.0
    rest_bytes: list[int] = field(default_factory=list)

    @cached_property
    def rest(self) -> RangeMax:
        """How much is in use at the events, but for what has been fetched."""
        return RangeMax(self.rest_bytes)

    def larger(self, factor: float, needs: list[int], chosen: Chosen) -> StepPlan:
        """The plan of a step that is so many times as large.

        Args:
            factor: So many times as the step that it is known from.
            needs: Bytes in use up to each of its events.
            chosen: What leaves.
        """
        return replace(
            self,
            rest_bytes=list(map(sub, needs, chosen.away_bytes)),
            chosen=chosen,
            target_bytes=chosen.missing_bytes,
            need_bytes=max(needs, default=0),
            factor=factor,
        )

    def does_the_same(self, other: StepPlan) -> bool:
        """Whether the same is done under another plan."""
        return (
            self.chosen.places == other.chosen.places
            and self.target_bytes == other.target_bytes
            and self.predicted == other.predicted
            and self.state_bytes == other.state_bytes
        )

    def error(self, place: int, saved_bytes: int) -> float:
        """By how much more is saved up to a place than was expected, as a share."""
        expected_bytes = self.factor * self.like.saved_before(place + 1)
        return saved_bytes / max(expected_bytes, 1.0) - 1


class Repeated:
    """The plan of steps that repeat, which is made once.

    To see that a step was the same takes a tenth of the time that planning takes.
    """

    def __init__(self) -> None:
        self._last: StepPlan | None = None
        self._asked: object = None  # what it was made for
        self._is_settled = False  # made twice for the same, it was the same

    def plan(self, step: Step, asked: object, anew: Callable[[], StepPlan]) -> StepPlan:
        """The plan for steps like one.

        Args:
            step: It.
            asked: All else that a plan depends on; None: it is to be made anew.
            anew: Makes one.
        """
        last, is_known = self._last, asked is not None and asked == self._asked
        if self._is_settled and is_known and last and last.like.is_same(step):
            return last
        plan = anew()
        self._is_settled = is_known and last is not None and plan.does_the_same(last)
        self._last, self._asked = plan, asked
        return plan


def _are_alike(step: Step, other: Step) -> bool:
    """Whether two steps save as much."""
    most = max(step.total_bytes, other.total_bytes)
    return abs(step.total_bytes - other.total_bytes) <= SAME * most


class Kinds:
    """The plans of the last kinds of steps."""

    def __init__(self) -> None:
        self._plans: list[tuple[int, StepPlan]] = []  # and when last followed
        self._step_count = 0

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def state_bytes(self) -> int:
        """Optimizers' state that is to be on the host for all of them."""
        return max((plan.state_bytes for _, plan in self._plans), default=0)

    def add(self, plan: StepPlan) -> None:
        """A step has ended, from whose record this is planned for others like it."""
        self._step_count += 1
        oldest = self._step_count - _REMEMBERED_STEPS
        others = [
            (seen, other)
            for seen, other in self._plans
            if seen > oldest and not _are_alike(plan.like, other.like)
        ]
        self._plans = [(self._step_count, plan), *others[: _KINDS - 1]]

    def clear(self) -> None:
        """What is saved is no more what it was."""
        self._plans.clear()

    def find(self, place: int, saved_bytes: int) -> StepPlan | None:
        """The plan of the kind whose steps save so much up to a place, if one does.

        Of several the one by which most leaves: what differs later is not known yet.
        """
        found = [
            plan
            for _, plan in self._plans
            if abs(plan.error(place, saved_bytes)) <= SAME
        ]
        return max(found, key=lambda plan: plan.target_bytes) if found else None

    def nearest(self, place: int, saved_bytes: int) -> StepPlan | None:
        """The plan of the kind whose steps come next to that."""

        def distance(plan: StepPlan) -> float:
            return abs(math.log1p(plan.error(place, saved_bytes)))

        near = [plan for _, plan in self._plans if plan.like.saved_before(place + 1)]
        return min(near, key=distance) if near else None
