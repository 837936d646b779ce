"""Which calls of modules run again in backward in place of keeping what they save.

Three steps lead there. The first in which hooks are on shows what each call saves, and
how many bytes are in use when. In the second the calls that save enough are watched and
run twice, which shows whether they may be and how long it takes. Then the schedule
chooses. From there on each step shows by how much the program has grown or shrunk
since, and the plan follows; when all could have been kept for some steps, it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from oomph.base.log import logger
from oomph.base.sizes import format_size
from oomph.offload import segments
from oomph.offload.record import Step
from oomph.offload.segments import Watched
from oomph.recompute import schedule, timeline
from oomph.recompute.calls import Call, CallTree, Key, Root
from oomph.recompute.converting import Converting, all_trials, rest_ms
from oomph.recompute.correction import Correction
from oomph.recompute.followers import Follower, Host, Running, Trying, Watching
from oomph.recompute.following import Following
from oomph.recompute.purity import Trial
from oomph.recompute.stopwatch import Waits

_LEAST_SHARE = 512  # part of a device that a call frees to be worth a trial,
_LEAST_BYTES = 4 << 20  # and this at least
_MOST_SHARE = 0.75  # of a device: what a call frees comes back at once
_SIZES = 8  # steps of which the largest is planned for
_KEPT_STEPS = 4  # steps in which all could have been kept, until it is
_MOST_STEPS = 8  # that are watched until one is short
_CHANGE = 0.02  # of the size that is worth another plan
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
        host: Who plans.
        early: Whether calls run again from the first step on, before anything is known.

    Attributes:
        follower: What follows calls in this step; None: nothing does.
        plan: What was chosen, in the size of the step that was watched; None: nothing
            is.
        left_alone: Why calls are not run again, and how many.
        freed_bytes: By which a step needs less under the plan.
        device: Whose step was watched last; -1: none was.
    """

    def __init__(self, host: Host, early: bool = False) -> None:
        self._host, self._early = host, early
        self.follower: Follower | None = Converting(host) if early else None
        self.plan: timeline.Plan | None = None
        self.left_alone: Counter[str] = Counter()
        self._watched: Watched | None = None  # a step in which calls were
        self._calls: list[Call] = []  # that are tried, then those that may run again
        self._record: timeline.Record | None = None
        self._hopeless_bytes = 0  # what a step needed in which nothing was to gain
        self._need_bytes = 0  # most bytes in use in a step, in the size of that step
        self._saved_bytes = 0  # under the plan, likewise
        self._size = 1.0  # that the plan is for; 1: that of the step that was watched
        self._sizes: deque[float] = deque(maxlen=_SIZES)
        self._kept_steps = self._watched_steps = 0
        self._had_steps = False
        self._roots: dict[Key, Root] = {}  # outermost calls
        self.freed_bytes = 0
        self.device = -1
        self._correction = Correction()

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
    def trial_bytes(self) -> int:
        """Room that this step's trials need, one after the other."""
        if not isinstance(self.follower, Trying):
            return 0
        return max(call.gain_bytes for call in self._calls)

    @property
    def step_ms(self) -> float:
        """Time of a step under the plan; 0: not known yet."""
        return self._correction.step_ms

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
        assert self._watched is not None
        step = self._watched.without(self.chosen())
        return step if abs(self._size - 1) <= _CHANGE else step.scaled(self._size)

    @property
    def state_bytes(self) -> int:
        """Of optimizers' state, that are to be on the host under the plan."""
        return int(self._size * self.plan.state_bytes) if self.plan is not None else 0

    @property
    def need_bytes(self) -> int:
        """Most bytes in use in a step, nothing sent."""
        return int(self._size * self._need_bytes)

    def stop(self) -> None:
        """Keeps everything from now on."""
        if self.follower is not None:
            self.follower.close()
        self.follower = self.plan = self._record = None
        self._sizes.clear()
        self._kept_steps, self._size = 0, 1.0
        self.freed_bytes = 0
        self._correction.restart()

    def convert(self) -> Follower:
        """This step is larger than is planned for: all that may run again does."""
        self.follower = Converting(self._host)
        return self.follower

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
            self._watched_steps += 1
            if step.need_bytes > room.limit_bytes or self._watched_steps == _MOST_STEPS:
                self._watched_steps = 0
                self._try(self.follower.trees, step, room)
            else:  # of another kind than the one that was short
                self.follower = Watching(self._host)
        elif isinstance(self.follower, Trying):
            return self._plan_tried(self.follower, step, room)
        elif isinstance(self.follower, Converting):
            return self._plan_converted(self.follower, step, room)
        elif isinstance(self.follower, Running):
            return self._adapt(self.follower, step, room)
        elif step.need_bytes > room.limit_bytes and self._is_other(step):
            self.follower = Watching(self._host)
        return False

    def _is_other(self, step: Step) -> bool:
        """Whether a step needs clearly more or less than one that was hopeless."""
        change = abs(step.need_bytes - self._hopeless_bytes)
        return change > _OTHER_PROGRAM * self._hopeless_bytes

    def _give_up(self, step: Step, why: str) -> None:
        logger.debug("nothing is recomputed: %s", why)
        self._hopeless_bytes = step.need_bytes
        self.stop()
        if self._early:
            self.follower = self._running([])

    # -- after the step in which calls were watched

    def sizes(self, limit_bytes: int) -> tuple[int, int]:
        """Bytes that a call must free to be worth a trial, and may free at most."""
        least_bytes = max(limit_bytes // _LEAST_SHARE, _LEAST_BYTES)
        return least_bytes, int(limit_bytes * _MOST_SHARE)

    def _try(self, trees: list[CallTree], step: Step, room: Room) -> None:
        """Has the calls tried that save most."""
        watched = self._select(trees, step, room)
        if watched is not None:
            self.follower = Trying(
                self._host, self._calls, *watched.to_try(), room.device
            )

    def _select(
        self,
        trees: list[CallTree],
        step: Step,
        room: Room,
        may: Callable[[Call], bool] = lambda _: True,
    ) -> Watched | None:
        """Chooses the calls that save most, of those that may be."""
        self.device = room.device
        if not trees:
            self._give_up(step, "no module was called")
            return None
        for tree in trees:
            tree.count(room.device)
        watched = Watched(step, trees)
        least_bytes, most_bytes = self.sizes(room.limit_bytes)
        watched.choose(least_bytes, lambda c: c.gain_bytes <= most_bytes and may(c))
        if not watched.calls:
            self._give_up(step, "no call saves enough by itself")
            return None
        self._watched, self._calls = watched, watched.calls
        return watched

    # -- after the step in which they were tried

    def _plan_tried(self, trying: Trying, step: Step, room: Room) -> bool:
        """Plans after a step in which calls were tried; whether other calls run."""
        watched = self._watched
        assert watched is not None
        measured = trying.measured(room.waits)
        keys = [call.key for call, _ in watched.marks(watched.tree)]
        if measured is None or keys != trying.boundaries:
            self._give_up(step, "the calls of two steps differ")
            return False
        blocks = self._judge(watched, trying.trials)
        spent = segments.without_waits(measured, blocks)
        self._record = watched.record(
            self._calls, blocks, spent, step, room.link, room.limit_bytes
        )
        self._correction = Correction(spent.before)
        return self._choose_or_give_up(step, room)

    def _plan_converted(self, converting: Converting, step: Step, room: Room) -> bool:
        """Plans after a step in which calls ran again from the start."""
        self.plan = None  # of other calls
        # The first step finds neither gradients nor optimizers' state, which others do.
        is_example = self._had_steps and not converting.has_failed
        self._had_steps = True
        if not is_example:
            self.follower = Converting(self._host)
            return False
        room = replace(room, limit_bytes=room.limit_bytes + step.born_bytes)
        step = step.with_born()  # of which nothing runs again
        ended = [turn for turn in converting.turns if turn.stopwatch.is_in_backward]
        self._roots = {key: root for turn in ended for key, root in turn.roots.items()}
        tried = {key for turn in ended for key in turn.trials}
        trees = [turn.tree for turn in ended]
        watched = self._select(trees, step, room, lambda call: call.key in tried)
        if watched is None:
            return False
        turn = next(turn for turn in ended if turn.tree is watched.tree)
        measured = turn.measured({call.key for call in self._calls}, room.waits)
        if measured is None:
            self._give_up(step, "there was no backward")
            return False
        measured.before, measured.after = 0.0, rest_ms(turn, ended)
        blocks = self._judge(watched, all_trials(ended))
        self._record = watched.record(self._calls, blocks, measured, step, room.link)
        self._correction = Correction(measured.before)
        self._sizes.clear()
        return self._choose_or_give_up(step, room)

    def _choose_or_give_up(self, step: Step, room: Room) -> bool:
        changed = self._choose(room)
        if self.plan is not None and not self.plan.recomputed and not self._early:
            self._give_up(step, "it would take longer")
        return changed

    def _judge(
        self, watched: Watched, trials: dict[Key, Trial]
    ) -> list[timeline.Block]:
        """Keeps the calls that may run again."""
        self.left_alone.clear()
        for call in self._calls:
            if (reason := trials[call.key].reason) is not None:
                self.left_alone[f"{call.name}: {reason}"] += 1
        self._calls = [c for c in self._calls if trials[c.key].reason is None]
        return watched.blocks({c.key: trials[c.key].again_ms for c in self._calls})

    def _choose(self, room: Room, plan: timeline.Plan | None = None) -> bool:
        """Plans the next step for the largest of the last.

        Args:
            room: What there is.
            plan: It; None: the one that makes it shortest.
        """
        if self._record is None or self._watched is None:
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
        elsewhere = self._watched.without(chosen)
        self._need_bytes = max(self.plan.need_bytes, elsewhere.most_bytes())
        self._saved_bytes = self._watched.saved_bytes_without(chosen)
        logger.debug(
            "%d of %d calls run again in backward, which frees %s",
            len(chosen),
            len(self._calls),
            format_size(sum(call.gain_bytes for call in chosen)),
        )
        self.follower = self._running(chosen)
        if before == {call.key for call in chosen}:
            return False
        self._correction.restart()
        return True

    def _running(self, chosen: list[Call]) -> Running:
        """What has these calls run again."""
        turn = 0
        if self._watched is not None:
            turn = self._watched.turn_of(None if self._early else chosen)
        if not self._early:
            return Running(self._host, chosen, turn, self.device)
        keys = {call.key for call in chosen}
        roots = {key: root.scaled(self._size) for key, root in self._roots.items()}
        expected = {
            key: used * self._size for key, used in self._used_when_they_begin().items()
        }
        return Following(
            self._host, self._calls, keys, expected, roots, turn, self.device
        )

    def _used_when_they_begin(self) -> dict[Key, int]:
        """Bytes that are in use when a call begins, under the plan."""
        if not self.plan or not self._record:
            return {}
        parts, blocks = self._record.columns.forward_bytes, self._record.blocks
        freed = [0] * (len(parts) + 1)
        for i in self.plan.recomputed:
            freed[blocks[i].end] += blocks[i].gain_bytes
        less = list(accumulate(freed))
        return {
            call.key: parts[block.first] - less[block.first]
            for call, block in zip(self._calls, blocks, strict=True)
        }

    # -- after steps in which calls ran again

    def _adapt(self, running: Running, step: Step, room: Room) -> bool:
        """Follows the size of the steps, and their time."""
        if not self.plan or not self._record or not self._watched:  # nothing to gain
            self.follower = self._running([])
            return False
        # It may need less than was expected and save as much: then it has not shrunk.
        saved = step.total_bytes / max(self._saved_bytes, 1)
        size = max(step.need_bytes / max(self._need_bytes, 1), min(saved, 1.0))
        self._sizes.append(size)
        fits = self._watched.step.most_bytes() * size <= room.limit_bytes
        self._kept_steps = self._kept_steps + 1 if fits else 0
        if self._kept_steps >= _KEPT_STEPS and not self._early:
            self.stop()
            return True
        self._correction.measure(running.stopwatch, room.waits)
        if abs(max(self._sizes) / self._size - 1) > _CHANGE:
            self._correction.forget_best()
            return self._choose(room)
        if (better := self._correction.better(self.plan)) is not None:
            return self._choose(room, better)
        right = self._correction.correct(self._record, self.plan, self._size, room.link)
        if right is not None:
            self._record = right
            return self._choose(room)
        self.follower = self._running(self.chosen())
        return False
