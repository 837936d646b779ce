"""Which of what a step saves is to leave in the next, and what is of no use there.

The choice itself is that of :func:`oomph.offload.sends.choose`. What left in the step
before leaves again, if that is enough and not much more than is needed: so steps that
are alike stay alike. What freed nothing when it was sent, as others hold it, is left
out until it was not saved for 100 steps. It costs one or two choices for each plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from oomph.offload.record import Step
from oomph.offload.sends import Choice, Save, choose

_LIKE = 8  # part of its size, by which another storage may differ in its place
_FORGET_STEPS = 100  # steps after which what was not seen again is forgotten


@dataclass(frozen=True)
class Chosen:
    """What leaves in a step.

    Attributes:
        sizes: Bytes of what the step is expected to save, by place.
        places: Of these, of what leaves.
        missing_bytes: Most bytes in use beyond what may be.
        short_bytes: Of these, what all that leaves does not free.
        away_bytes: What is away at each event.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    places: frozenset[int] = frozenset()
    missing_bytes: float = 0.0
    short_bytes: float = 0.0
    away_bytes: list[int] = field(default_factory=list)

    def wants(self, save: Save) -> bool | None:
        """Whether it leaves; None: nothing like it was expected there."""
        place, size_bytes = save
        expected_bytes = self.sizes.get(place)
        if (
            expected_bytes is None
            or abs(size_bytes - expected_bytes) > expected_bytes // _LIKE
        ):
            return None
        return place in self.places


class Leavers:
    """What leaves of what is saved, and what is of no use there.

    Attributes:
        useless: What others hold, so that sending frees nothing; and the step in which
            it was last saved.
        changes: How often others than before were of no use.
    """

    def __init__(self) -> None:
        self.useless: dict[Save, int] = {}
        self.changes = 0
        self._step_count = 0

    def blame(self, saves: Iterable[Save]) -> None:
        """Sending these was of no use."""
        count = len(self.useless)
        self.useless.update(dict.fromkeys(saves, self._step_count))
        self.changes += len(self.useless) > count

    def choose(
        self,
        step: Step,
        needs: list[int],
        limit_bytes: float,
        before: Chosen | None = None,
        slack_bytes: int = 0,
        factor: float = 1.0,
    ) -> Chosen:
        """Chooses what leaves in a step.

        Args:
            step: One like it.
            needs: Bytes in use up to each of its events.
            limit_bytes: What may be in use.
            before: What left in the step before. It leaves again, if that is enough,
            slack_bytes: and no more than so much beyond what is needed.
            factor: By how much larger all is that it saves.
        """
        sizes = {place: int(factor * size_bytes) for place, size_bytes in step.saves}
        saves = [(s[0], sizes[s[0]]) for s in step.saves if s not in self.useless]
        stays = step.stays(saves)

        def size_of(choice: Choice) -> int:
            return sum(saves[i][1] for i in choice.leaving)

        choice = choose(needs, stays, limit_bytes)
        if before is not None:
            left = frozenset(i for i, save in enumerate(saves) if before.wants(save))
            if choice.leaving != left:
                same = choose(needs, stays, limit_bytes, left)
                more_bytes = size_of(same) - size_of(choice)
                if same.leaving == left and more_bytes < slack_bytes:
                    choice = same
        return Chosen(
            sizes,
            frozenset(saves[i][0] for i in choice.leaving),
            choice.missing_bytes,
            choice.short_bytes,
            choice.away_bytes,
        )

    def end_step(self, step: Step) -> None:
        """What is saved no more, as shapes change, is not kept for ever."""
        self._step_count += 1
        if not self.useless:
            return
        for save in self.useless.keys() & set(step.saves):
            self.useless[save] = self._step_count
        oldest = self._step_count - _FORGET_STEPS
        for save in [s for s, seen in self.useless.items() if seen < oldest]:
            del self.useless[save]
            self.changes += 1
