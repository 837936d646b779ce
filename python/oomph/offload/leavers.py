"""Which of what a step saves is to leave in the next, and what is of no use there."""

from __future__ import annotations

from collections.abc import Iterable

from oomph.offload.headroom import EXTRA_SHARE
from oomph.offload.record import Step
from oomph.offload.sends import Choice, Save, choose

_FORGET_STEPS = 100  # steps after which what was not seen again is forgotten


class Leavers:
    """What leaves of what is saved, by its place and size.

    Attributes:
        useless: What others hold, so that sending frees nothing; and the step in which
            it was last saved.
        short_bytes: What all that leaves does not free.
        away_bytes: What is to be away at each event of the step that they were chosen
            from.
    """

    def __init__(self) -> None:
        self.useless: dict[Save, int] = {}
        self.short_bytes = 0.0
        self.away_bytes: list[int] = []
        self._known: set[Save] = set()  # what the last step saved
        self._chosen: set[Save] = set()  # of it
        self._step_count = 0

    def wants(self, save: Save) -> bool | None:
        """Whether it is to leave; None: the last step saved nothing like it."""
        if save in self.useless:
            return False
        return save in self._chosen if save in self._known else None

    def blame(self, saves: Iterable[Save]) -> None:
        """Sending these was of no use."""
        self.useless.update(dict.fromkeys(saves, self._step_count))

    def choose(
        self, step: Step, needs: list[int], limit_bytes: float, capacity: int
    ) -> float:
        """Chooses what leaves in the next step; gives the bytes that are missing.

        What leaves now goes on to, if that is enough and hardly more than needed.

        Args:
            step: The last one.
            needs: Bytes in use up to each of its events.
            limit_bytes: What may be in use.
            capacity: Bytes of the device.
        """
        saves = [save for save in step.saves if save not in self.useless]
        stays = step.stays(saves)
        before = frozenset(i for i, save in enumerate(saves) if save in self._chosen)

        def size_of(choice: Choice) -> int:
            return sum(saves[i][1] for i in choice.leaving)

        choice = choose(needs, stays, limit_bytes)
        if choice.leaving != before:
            same = choose(needs, stays, limit_bytes, before)
            more_bytes = size_of(same) - size_of(choice)
            if same.leaving == before and more_bytes < capacity // EXTRA_SHARE:
                choice = same
        self._known = set(step.saves)
        self._chosen = {saves[i] for i in choice.leaving}
        self.short_bytes = choice.short_bytes
        self.away_bytes = choice.away_bytes
        return choice.missing_bytes

    def end_step(self, step: Step) -> None:
        """What is saved no more, as shapes change, is not kept for ever."""
        self._step_count += 1
        for save in self.useless.keys() & set(step.saves):
            self.useless[save] = self._step_count
        oldest = self._step_count - _FORGET_STEPS
        for save in [s for s, seen in self.useless.items() if seen < oldest]:
            del self.useless[save]
