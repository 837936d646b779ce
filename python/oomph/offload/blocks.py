"""Which calls of modules run again in backward in place of keeping what they save.

Three steps lead there. The first in which hooks are on shows what each call saves, and
how many bytes are in use when. In the second the calls that save enough are watched and
run twice, which shows whether they may be and how long it takes. Then the schedule
chooses. From there on each step shows by how much the program has grown or shrunk
since, and the plan follows; when all could have been kept for some steps, it is.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from oomph.base.log import logger
from oomph.base.sizes import format_size
from oomph.offload import segments
from oomph.offload.record import Step
from oomph.recompute import schedule, timeline
from oomph.recompute.calls import Call, Key
from oomph.recompute.followers import Follower, Running, Trying, Waits, Watching
from oomph.recompute.purity import Aside
from oomph.steps import times

_LEAST_SHARE = 512  # part of a device that a call frees to be worth a trial,
_LEAST_BYTES = 4 << 20  # and this at least
_MOST_SHARE = 0.75  # of a device: what a call frees comes back at once
_MOST_CALLS = 256  # that are tried
_SIZES = 8  # steps of which the largest is planned for
_KEPT_STEPS = 4  # steps in which all could have been kept, until it is
_CHANGE = 0.02  # of the size that is worth another plan
_MEASURED = 3  # ends of steps: the first step under a plan still meets what was before
_ERROR = 0.03  # of a step's time that is worth a correction,
_CORRECTIONS = 4  # as long as there were fewer
_WORSE = 0.01  # by which a step under a corrected plan is too long
_LEAST_FACTOR = 0.1  # of the time that backward was said to take
_OTHER_PROGRAM = 0.1  # of what a step needs after which calls are looked at again


@dataclass(frozen=True)
class Room:
    """What there is on a device.

    Attributes:
        device: Its index.
        limit_bytes: What may be in use.
        link: Its speed.
        waits: Events around each wait for a copy in the last step.
    """

    device: int
    limit_bytes: int
    link: timeline.Link
    waits: Waits


class Blocks:
    """The calls that run again, and what leads to their choice.

    Args:
        place: Gives the place of the tensor that is saved next.
        skip: Sets it.
        aside: Gives a context for what the program itself would not run.

    Attributes:
        follower: What follows calls in this step; None: nothing does.
        plan: What was chosen, in the size of the step that was watched; None: nothing
            is.
        left_alone: Why calls are not run again, and how many.
        step_ms: Time of a step under the plan; 0: not known yet.
        freed_bytes: By which a step needs less under the plan.
        device: Whose step was watched last; -1: none was.
    """

    def __init__(
        self, place: Callable[[], int], skip: Callable[[int], None], aside: Aside
    ) -> None:
        self.follower: Follower | None = None
        self.plan: timeline.Plan | None = None
        self.left_alone: Counter[str] = Counter()
        self._place, self._skip, self._aside = place, skip, aside
        self._step = Step()  # in which calls were watched
        self._turn = slice(0)  # of it, where most was saved: its places
        # By call, its first place, its end, and what it frees, in each turn.
        self._spans: dict[Key, list[tuple[int, int, int]]] = {}
        self._marks: list[tuple[Call, bool]] = []  # in it: one begins, or ends
        self._calls: list[Call] = []  # that are tried, then those that may run again
        self._record: timeline.Record | None = None
        self._hopeless_bytes = 0  # what a step needed in which nothing was to gain
        self._need_bytes = 0  # most bytes in use in a step, in the size of that step
        self._saved_bytes = 0  # by what does not run again, likewise
        self._size = 1.0  # that the plan is for; 1: that of the step that was watched
        self._sizes: deque[float] = deque(maxlen=_SIZES)
        self._kept_steps = 0
        self.step_ms = 0.0
        self.freed_bytes = 0
        self.device = -1
        self._ends: list[Any] = []  # of two steps in a row under the plan
        self._corrections = 0
        # The shortest step that was measured in this size, and its plan.
        self._best: tuple[float, timeline.Plan | None] = math.inf, None

    def chosen(self) -> list[Call]:
        """The calls that run again, in the order in which they begin."""
        return [
            self._calls[i] for i in sorted(self.plan.recomputed if self.plan else ())
        ]

    def has_device(self) -> bool:
        """Whether it is known whose calls run again, or are tried."""
        return isinstance(self.follower, (Trying, Running))

    def is_looking(self) -> bool:
        """Whether it is not known yet what may run again."""
        return isinstance(self.follower, (Watching, Trying))

    @property
    def expected_ms(self) -> float:
        """The time that a step should take under the plan."""
        return self._size * self.plan.step_ms if self.plan is not None else 0.0

    @property
    def again_ms(self) -> float:
        """Of it, what calls take that run again."""
        return self._size * self.plan.recompute_ms if self.plan is not None else 0.0

    def expected(self) -> Step:
        """The step in which calls were watched, as it is with those that run again."""
        step = self._step.without(self._spans_of(self.chosen()))
        return step if abs(self._size - 1) <= _CHANGE else step.scaled(self._size)

    @property
    def state_bytes(self) -> int:
        """Of optimizers' state, that are to be on the host under the plan."""
        return int(self._size * self.plan.state_bytes) if self.plan is not None else 0

    @property
    def need_bytes(self) -> int:
        """Most bytes in use in a step, nothing sent."""
        return int(self._size * self._need_bytes)

    def _spans_of(self, calls: list[Call]) -> list[tuple[int, int, int]]:
        """Where they save, in each turn."""
        return [span for call in calls for span in self._spans[call.key]]

    def stop(self) -> None:
        """Keeps everything from now on."""
        if self.follower is not None:
            self.follower.close()
        self.follower = self.plan = self._record = None
        self._sizes.clear()
        self._kept_steps, self._size = 0, 1.0
        self.step_ms, self.freed_bytes = 0.0, 0
        self._ends.clear()

    def end_step(self, step: Step, room: Room) -> bool:
        """A step has ended.

        Args:
            step: What it showed.
            room: What there is.

        Returns:
            Whether other calls than before run again.
        """
        if self.follower is not None:
            self.follower.close()
        if isinstance(self.follower, Watching):
            self._select(self.follower, step, room)
        elif isinstance(self.follower, Trying):
            self._judge(self.follower, step, room)
            changed = self._choose(room)
            if self.plan is not None and not self.plan.recomputed:
                self._give_up(step, "it would take longer")
            return changed
        elif isinstance(self.follower, Running):
            return self._adapt(step, room)
        elif step.need_bytes > room.limit_bytes and self._is_other(step):
            self.follower = Watching(self._place)
        return False

    def _is_other(self, step: Step) -> bool:
        """Whether a step needs clearly more or less than one that was hopeless."""
        change = abs(step.need_bytes - self._hopeless_bytes)
        return change > _OTHER_PROGRAM * self._hopeless_bytes

    def _give_up(self, step: Step, why: str) -> None:
        logger.debug("nothing is recomputed: %s", why)
        self._hopeless_bytes = step.need_bytes
        self.stop()

    # -- after the step in which calls were watched

    def _select(self, watching: Watching, step: Step, room: Room) -> None:
        """Chooses the calls to try: those that save most."""
        self.device = room.device
        if not watching.trees:
            self._give_up(step, "no module was called")
            return
        trees = watching.trees
        tree = max(trees, key=lambda tree: tree.saved_bytes)
        for one in trees:
            one.count(room.device)
        least = max(room.limit_bytes // _LEAST_SHARE, _LEAST_BYTES)
        most = room.limit_bytes * _MOST_SHARE
        found = [call for call in tree.calls if least <= call.gain_bytes <= most]
        found = sorted(found, key=lambda call: -call.gain_bytes)[:_MOST_CALLS]
        if not found:
            self._give_up(step, "no call saves enough by itself")
            return
        self._step, self._calls = step, found
        keys = {call.key for call in found}
        self._spans = {key: [] for key in keys}
        for call in (call for one in trees for call in one.calls if call.key in keys):
            span = call.first - step.first, call.end - step.first, call.gain_bytes
            self._spans[call.key].append(span)
        ends = [one.first for one in trees if one.first > tree.first]
        self._turn = slice(
            tree.first - step.first, min(ends, default=sys.maxsize) - step.first
        )
        self._marks = [
            (tree.calls[i], is_end)
            for i, is_end in tree.marks
            if tree.calls[i].key in keys
        ]
        modules = {call.key[0] for call in found}
        # A turn is one in which any of these modules is called.
        turn = sum(
            not modules.isdisjoint(call.key[0] for call in one.calls)
            for one in trees[: trees.index(tree) + 1]
        )
        self.follower = Trying(
            self._place, found, self._bounds(), self._aside, turn, room.device
        )

    def _bounds(self) -> list[int]:
        """The places at which calls begin and end, from the first of the step."""
        return [
            (call.end if is_end else call.first) - self._step.first
            for call, is_end in self._marks
        ]

    # -- after the step in which they were tried

    def _judge(self, trying: Trying, step: Step, room: Room) -> None:
        """Keeps the calls that may run again, and how long each takes."""
        measured = trying.measured(room.waits)
        if (
            measured is None
            or [call.key for call, _ in self._marks] != trying.boundaries
        ):
            self._give_up(step, "the calls of two steps differ")
            return
        self.left_alone.clear()
        trials = trying.trials
        for call in self._calls:
            if (reason := trials[call.key].reason) is not None:
                self.left_alone[f"{call.name}: {reason}"] += 1
        self._calls = [c for c in self._calls if trials[c.key].reason is None]
        begins = {c.key: i for i, (c, is_end) in enumerate(self._marks) if not is_end}
        ends = {c.key: i for i, (c, is_end) in enumerate(self._marks) if is_end}
        blocks = [
            timeline.Block(
                begins[call.key] + 1,
                ends[call.key] + 1,
                call.gain_bytes,
                trials[call.key].again_ms,
            )
            for call in self._calls
        ]
        parts = segments.of_step(
            self._step.between(self._turn.start, self._turn.stop),
            self._bounds(),
            segments.without_waits(measured, blocks),
        )
        self._record = timeline.Record(parts, blocks, measured.rest, step.state_bytes)
        self._corrections = 0
        self._best = math.inf, None

    def _choose(self, room: Room, plan: timeline.Plan | None = None) -> bool:
        """Plans the next step for the largest of the last.

        Args:
            room: What there is.
            plan: It; None: the one that makes it shortest.
        """
        if self._record is None:
            return False
        before = {call.key for call in self.chosen()}
        self._size = max(self._sizes, default=1.0)
        limit_bytes = room.limit_bytes / self._size
        if plan is None:
            state_bytes = int(self._record.state_bytes / self._size)
            record = replace(self._record, state_bytes=state_bytes)
            plan = schedule.choose(record, limit_bytes, room.link)
        self.plan = plan
        freed_bytes = self._record.columns.need_bytes - self.plan.need_bytes
        self.freed_bytes = int(self._size * freed_bytes)
        chosen = self.chosen()
        elsewhere = self._step.without(self._spans_of(chosen))
        self._need_bytes = max(self.plan.need_bytes, elsewhere.most_bytes())
        self._saved_bytes = elsewhere.total_bytes
        logger.debug(
            "%d of %d calls run again in backward, which frees %s",
            len(chosen),
            len(self._calls),
            format_size(sum(call.gain_bytes for call in chosen)),
        )
        self.follower = Running(self._place, self._skip, chosen)
        if before == {call.key for call in chosen}:
            return False
        self.step_ms = 0.0
        self._ends.clear()
        return True

    # -- after steps in which calls ran again

    def _adapt(self, step: Step, room: Room) -> bool:
        """Follows the size of the steps."""
        assert self.plan is not None and self._record is not None
        # It may need less than was expected and save as much: then it has not shrunk.
        saved = step.total_bytes / max(self._saved_bytes, 1)
        size = max(step.need_bytes / max(self._need_bytes, 1), min(saved, 1.0))
        self._sizes.append(size)
        fits = self._step.most_bytes() * size <= room.limit_bytes
        self._kept_steps = self._kept_steps + 1 if fits else 0
        if self._kept_steps >= _KEPT_STEPS:
            self.stop()
            return True
        self._measure()
        if abs(max(self._sizes) / self._size - 1) > _CHANGE:
            self._best = math.inf, None
            return self._choose(room)
        if (better := self._better()) is not None:
            return self._choose(room, better)
        if self._correct():
            return self._choose(room)
        self.follower = Running(self._place, self._skip, self.chosen())
        return False

    def _measure(self) -> None:
        """Learns the time of the last step under the plan that the device has ended."""
        if len(self._ends) < _MEASURED:
            self._ends.append(times.mark(self.device))
        elif times.has_passed(self._ends[-1]):
            self.step_ms = self._ends[-2].elapsed_time(self._ends[-1])
            self._ends[:] = [times.mark(self.device)]

    def _better(self) -> timeline.Plan | None:
        """The plan of a shorter step, if the last correction was none."""
        assert self.plan is not None
        best_ms, best = self._best
        if 0 < self.step_ms <= best_ms:
            self._best = self.step_ms, self.plan
        elif self.step_ms > (1 + _WORSE) * best_ms and best != self.plan:
            self._corrections = _CORRECTIONS
            return best
        return None

    def _correct(self) -> bool:
        """Sets the record right where a step takes another time than it says.

        Steps in which calls were watched and tried may have used host pages, or waited
        where nothing tells: in backward, most of them. Whether it is another now.
        """
        assert self.plan is not None and self._record is not None
        more_ms = self.step_ms - self.expected_ms
        if self.step_ms == 0 or abs(more_ms) < _ERROR * self.step_ms:
            return False
        if self._corrections == _CORRECTIONS:
            return False
        self._corrections += 1
        parts = self._record.segments
        backward_ms = sum(s.backward_ms for s in parts) * self._size
        factor = max(1 + more_ms / max(backward_ms, 1e-9), _LEAST_FACTOR)
        self._record = replace(
            self._record,
            segments=[replace(s, backward_ms=s.backward_ms * factor) for s in parts],
        )
        return True
