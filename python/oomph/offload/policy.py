"""How much of a device's memory must be elsewhere, as its last step showed.

A step is recorded: what it needed, when memory was shortest, what was saved and used at
which place. From this follow the target of the next step, which storages leave to reach
it, and when each of them must be back.
"""

from __future__ import annotations

import bisect
import math
import weakref
from dataclasses import replace
from operator import itemgetter

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph import _C
from oomph.base.log import logger
from oomph.offload import transfer
from oomph.offload.blocks import Room
from oomph.offload.headroom import EXTRA_SHARE, Headroom, slack_bytes
from oomph.offload.kinds import SAME, Kinds, StepPlan
from oomph.offload.leavers import Chosen, Leavers
from oomph.offload.leaving import Leaving
from oomph.offload.optimizers import OptimizerChoice
from oomph.offload.record import Event, Step
from oomph.offload.sends import Save
from oomph.offload.transfer import Link, OffloadedStorage, is_hosted
from oomph.recompute.followers import Waits

_FITTING_STEPS = 8  # steps that would have fitted, until the hooks are taken off,
_MOST_PATIENCE = 64  # and at most, where shortages came back
_SMALLER = 0.1  # share by which a step is smaller than expected, to be planned anew
_GUESSES = 8  # plans for one step of an unknown kind
_MUCH = 3  # part of the device that no single block is worth
_MARGIN = 100  # part of it by which more state leaves than has to
_LARGE = 32  # part of it that one is worth which goes to the host at once
_BLIND = 0.4  # share of the device left free by a fetch before a step was recorded


class DevicePlan:
    """The planner's state of one device.

    The caller holds ``transfer.lock``, but for :meth:`send` and :meth:`fetch_before`,
    which take it for themselves and give it up while they ask for memory.
    """

    def __init__(self, index: int, target_bytes: float) -> None:
        self.index = index
        self.link = Link(index)
        self.plan = StepPlan(target_bytes=target_bytes)  # of the step that runs
        self.kinds = Kinds()
        self._saved_bytes = 0  # in this step
        self._guesses = 0  # of what it will be
        self.is_short = target_bytes > 0  # of memory, now or not long ago
        self.headroom = Headroom()
        self.capacity = 0  # bytes that blocks can have on it
        self.step = Step()
        self.last = Step()
        self.is_far_short = False  # by more than calls that run again may free
        self._fitting_steps = 0
        self._patience = _FITTING_STEPS
        self.leavers = Leavers()
        self.offloaded: weakref.WeakValueDictionary[int, OffloadedStorage] = (
            weakref.WeakValueDictionary()
        )  # the newest of each storage
        self.away: list[tuple[int, weakref.ref[OffloadedStorage]]] = []
        self._is_fetching = False  # some thread does, ahead of need
        self._resized: dict[int, StorageWeakRef] = {}  # storages that change their size
        self._leaving = Leaving()
        self._gone_bytes = 0  # sent and gone, when last looked
        self._is_saving = False  # forward runs; else backward
        self._before_optimizer: int | None = None  # bytes in use
        self._in_optimizer = 0  # most bytes, as in a step, since then
        self._now_bytes = self.host_bytes = 0  # in use, on either side and on host
        self._start_host_bytes = 0  # when the step began
        self._since_event: tuple[int, ...] = 0, 0, 0  # bytes, as in an event
        # Of storages that stay: where they were saved first.
        self._kept: dict[int, tuple[int, StorageWeakRef]] = {}
        self.optimizers = OptimizerChoice(self.link)

    # -- going out

    def wants(self, place: int, size_bytes: int) -> bool:
        """Whether a storage is to leave: chosen, or new and the target not reached."""
        if _C.offload_is_forbidden():
            return False
        save = place, size_bytes
        if save in self.leavers.useless:
            return False
        wanted = self.plan.chosen.wants(save)
        if wanted is None:
            wanted = self.plan.target_bytes > self.link.away_bytes
        return wanted

    def send(self, tensor: torch.Tensor, sequence: int) -> OffloadedStorage | None:
        """Sends its storage to the host, if it is not there, or None if it stays."""
        with self.link.sending:
            with transfer.lock:
                found = self._find_or_want(tensor, sequence)
            if not isinstance(found, bool):
                return found
            if not found:
                return None
            try:
                offloaded = OffloadedStorage(self.link, tensor, sequence)
            except (MemoryError, _C.DriverError) as error:
                logger.debug("a saved tensor stays on the device: %s", error)
                return None
            with transfer.lock:
                self._note_sent(offloaded)
            return offloaded

    def _find_or_want(
        self, tensor: torch.Tensor, sequence: int
    ) -> OffloadedStorage | bool:
        """What has the tensor's storage as it is, or whether to send it."""
        storage, step = tensor.untyped_storage(), self.step
        key, place = storage._cdata, sequence - step.first
        if key in self._resized:
            return False
        offloaded = self.offloaded.get(key)
        if offloaded is not None and offloaded.serves(tensor):
            step.same[place] = offloaded.sequence - step.first
            return offloaded
        self.note()
        self._leaving.age(sequence)
        self._is_saving = torch._C._current_graph_task_id() < 0
        first, reference = self._kept.get(key, (place, None))
        if reference is not None and not reference.expired():  # type: ignore[no-untyped-call]
            step.same[place] = first
            self._note_event(first, is_use=False)
            return False
        self._note_event(place, is_use=False)
        step.saves.append((place, storage.nbytes()))
        self._saved_bytes += storage.nbytes()
        if self._is_saving:
            self._look_at_kind(place)
        if not is_hosted(storage.data_ptr()) and self.wants(place, storage.nbytes()):
            return True
        self._kept[key] = place, StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return False

    def _look_at_kind(self, place: int) -> None:
        """Follows another plan if this step saves more or less than was expected."""
        error = self.plan.error(place, self._saved_bytes)
        if abs(error) <= SAME or not self.kinds or math.isinf(self.plan.target_bytes):
            return
        plan = self.kinds.find(place, self._saved_bytes)
        if plan is None and (error > SAME or error < -_SMALLER):
            plan = self._guess(place)
        if plan is not None:
            self._follow(plan)

    def _guess(self, place: int) -> StepPlan | None:
        """A plan for a step of an unknown kind, from the nearest one."""
        nearest = self.kinds.nearest(place, self._saved_bytes)
        if nearest is None or self._guesses == _GUESSES:
            return None
        self._guesses += 1
        factor = 1 + nearest.error(place, self._saved_bytes)
        step = nearest.like
        needs = step.needs(on_device=nearest.predicted_bytes > 0, factor=factor)
        state_bytes = self.kinds.state_bytes
        chosen = self.leavers.choose(
            step,
            [need_bytes - state_bytes for need_bytes in needs],
            self._limit_bytes(step),
            factor=factor,
        )
        return replace(
            nearest,
            like=step.resting(needs, chosen.away_bytes),
            chosen=chosen,
            target_bytes=chosen.missing_bytes,
            need_bytes=max(needs, default=0),
            factor=factor,
        )

    def _follow(self, plan: StepPlan) -> None:
        """Does from now on what is planned for a kind of step."""
        if plan.predicted_bytes != self.plan.predicted_bytes:
            _C.foresee(self.index, plan.predicted_bytes)
        self.plan = plan

    def _note_sent(self, offloaded: OffloadedStorage) -> None:
        self.offloaded[offloaded.storage.cdata] = offloaded
        entry = offloaded.sequence, weakref.ref(offloaded)
        bisect.insort(self.away, entry, key=itemgetter(0))
        self._leaving.add(offloaded)
        self.step.away_bytes = max(self.step.away_bytes, self.link.away_bytes)

    def note(self) -> tuple[int, int]:
        """Records the time since the last note; gives bytes in use and their limit."""
        self.link.settle()
        now, high, host, host_high, device_high, self.capacity = _C.tide(self.index)
        self._now_bytes, self.host_bytes = now, host
        step = self.step
        gone_bytes = self._count_gone()
        was_gone_bytes = min(self._gone_bytes, gone_bytes)
        need_bytes = high + was_gone_bytes
        if self._before_optimizer is not None:
            self._in_optimizer = max(self._in_optimizer, need_bytes)
            step.optimizer_bytes = max(step.optimizer_bytes, need_bytes)
        else:
            step.need_bytes = max(step.need_bytes, need_bytes)
            self._note_growth(host_high - self._start_host_bytes)
            rest_bytes = high - self.link.restored_bytes
            now_bytes = need_bytes, device_high + was_gone_bytes, rest_bytes
            self._since_event = tuple(map(max, self._since_event, now_bytes))
        self._gone_bytes = gone_bytes
        step.host_bytes = max(step.host_bytes, host_high)
        return now - host, self.capacity

    def _note_event(self, place: int, is_use: bool) -> None:
        """A storage is saved or used, and what that needed has been noted."""
        self.step.events.append(Event(place, is_use, *self._since_event))
        self._since_event = 0, 0, 0

    def skip(self) -> None:
        """What was in use since the last note counts for nothing."""
        _C.tide(self.index)

    def _note_growth(self, growth: int) -> None:
        step = self.step
        more = max(growth - step.host_growth - step.fetch_growth, 0)
        if self.link.restored_bytes > 0:
            step.fetch_growth += more
        elif more > 0:
            step.host_growth += more
            held = filter(self._is_there, self._leaving.take_held())
            step.held.update(map(self._save_of, held))

    def _save_of(self, offloaded: OffloadedStorage) -> Save:
        return offloaded.sequence - self.step.first, offloaded.bytes

    def _count_gone(self) -> int:
        """Bytes that are away and that the device has no more."""
        self._leaving.look(self._is_there)
        return max(self.link.away_bytes - self._leaving.bytes, 0)

    def _is_there(self, offloaded: OffloadedStorage) -> bool:
        """Whether a storage that was sent still takes room."""
        state = offloaded.state()
        if offloaded.is_away and state == transfer.CHANGED:
            self._resized[offloaded.storage.cdata] = offloaded.storage
            self._keep(offloaded)
        return offloaded.is_away and state != transfer.GONE

    # -- coming back

    def fetch_before(self, sequence: int) -> None:
        """Fetches what will be used next, as far as memory allows.

        One thread at a time: what others come to use meanwhile they take themselves.
        """
        with transfer.lock:
            used, capacity = self.note()
            place = sequence - self.step.first
            place = self.step.same.get(place, place)
            self._note_event(place, is_use=True)
            self._forget_stayed(sequence)
            if self._is_fetching:
                return
            self._is_fetching = True
        try:
            free = capacity - self.headroom.for_fetches(capacity) - used
            while (
                found := self._next_to_fetch(sequence, place, free, used)
            ) is not None:
                found.fetch()
                free, used = free - found.bytes, used + found.bytes
        except (torch.OutOfMemoryError, _C.DriverError) as error:
            logger.debug("nothing is fetched ahead now: %s", error)
        finally:
            self._is_fetching = False

    def _next_to_fetch(
        self, sequence: int, place: int, free: int, used: int
    ) -> OffloadedStorage | None:
        """The last that was saved before what is used now, if there is room for it."""
        with transfer.lock:
            end = bisect.bisect_left(self.away, sequence, key=itemgetter(0))
            while end > 0:
                end -= 1
                offloaded = self.away[end][1]()
                if offloaded is not None and offloaded.is_away:
                    margin = self._margin(offloaded, place, used)
                    return offloaded if offloaded.bytes + margin <= free else None
                del self.away[end]
            return None

    def _margin(self, offloaded: OffloadedStorage, place: int, used: int) -> int:
        """By how much the rest will grow from a place's use to that of a storage."""
        index = self.plan.like.index
        now = index.get((place, True))
        then = index.get((offloaded.sequence - self.step.first, True))
        if now is None or then is None:
            return int(self.capacity * _BLIND)
        most = self.plan.like.rest.most(now + 1, then + 1)
        return max(most + self.link.restored_bytes - used, 0)

    def _forget_stayed(self, sequence: int) -> None:
        """Where backward begins: learns what others hold and sending does not free."""
        if not self._is_saving:
            return
        self._is_saving = False
        for offloaded in (reference() for _, reference in self.away):
            if offloaded is None or not offloaded.is_away:
                continue
            if offloaded.state() != transfer.GONE:
                self._keep(offloaded)
        self._leaving.look(self._is_there, at_all=True)

    def _keep(self, offloaded: OffloadedStorage) -> None:
        """Sending it did not help, and would not in the next step."""
        self.leavers.blame([self._save_of(offloaded)])
        offloaded.stay()

    # -- a step ends

    def before_optimizer(self) -> None:
        """The optimizer is about to make its state, if it has none."""
        self.note()
        self._before_optimizer = self._now_bytes
        self._in_optimizer = 0

    def interrupt_optimizer(self) -> None:
        """The optimizer has others work before it goes on."""
        self.note()
        self._before_optimizer = None

    def after_optimizer(self) -> None:
        """What the optimizer made and kept, and what it only needed for a while."""
        if self._before_optimizer is None:
            self.note()
            return
        before, step = self._before_optimizer, self.step
        self.note()
        now = self._now_bytes
        step.born_bytes += max(now - before, 0)
        temporary_bytes = self._in_optimizer - max(now, before)
        step.temporary_bytes = max(step.temporary_bytes, temporary_bytes)
        self._before_optimizer = None

    def end_step(self, rescued: bool, sequence: int, state: tuple[int, int]) -> None:
        """Plans the next step from the one that has ended, after the optimizer.

        Args:
            rescued: Whether blocks fell back to the host in it.
            sequence: How much has been saved in all steps.
            state: Bytes of optimizers' state on the host, and of all.
        """
        self._note_event(-1, is_use=True)  # the last that was needed
        used = self.link.end_step()
        self.step.sent_bytes, self.step.fetched_bytes, self.step.waited_ms = used
        self.step.state_host_bytes, self.step.state_bytes = state
        unreached_bytes = 0
        if rescued and math.isfinite(self.plan.target_bytes):
            target_bytes = int(self.plan.target_bytes)
            unreached_bytes = max(target_bytes - self.step.away_bytes, 0)
        step = self.last = self.step
        self.step = Step(first=sequence)
        self._saved_bytes = self._guesses = 0
        self._is_saving = False
        self._start_host_bytes = self.host_bytes
        self._kept.clear()
        if rescued:
            self._learn_from_failure(step)
        else:
            self.headroom.trust(self.capacity)
        self._forget(step)
        if math.isfinite(self.plan.target_bytes):  # not offload:always
            self._plan_for(step, rescued, unreached_bytes)
        self.optimizers.choose(step, self.capacity, self.state_bytes > 0)

    @property
    def state_bytes(self) -> int:
        """Of optimizers' state, that are to be on the host."""
        return max(self.plan.state_bytes, self.kinds.state_bytes)

    def _limit_bytes(self, step: Step) -> float:
        """What may be in use in a step."""
        free_bytes = slack_bytes(self.capacity) + self.headroom.extra_bytes
        return float(self.capacity - step.born_bytes - free_bytes)

    def _plan_for(self, step: Step, rescued: bool, unreached_bytes: int) -> None:
        """Plans for steps like one that has ended."""
        limit_bytes = self._limit_bytes(step)
        predicted_bytes = self.plan.predicted_bytes
        if not (rescued or predicted_bytes > 0 or step.state_host_bytes > 0):
            plan = self._choose(step, step.needs(on_device=True), limit_bytes)
        else:
            # What a rescue put on the host might have a place, and what goes there at
            # once, if all that may leave makes it.
            plan = self._choose(step, step.needs(), limit_bytes)
            if plan.chosen.short_bytes == 0:
                unreached_bytes = predicted_bytes = 0
            elif not rescued:
                chosen = self._leavers_of(step, step.needs(on_device=True), limit_bytes)
                plan = replace(plan, chosen=chosen, target_bytes=chosen.missing_bytes)
        # Of what did not leave: blocks as large go to the host at once. If it is much
        # before anything could leave, optimizers' state does.
        self.is_far_short = unreached_bytes > self.capacity // _MUCH
        if self.is_far_short and not step.had_hooks():
            plan.state_bytes = min(unreached_bytes, step.state_bytes)
        if unreached_bytes > 0:
            predicted_bytes = max(unreached_bytes, self.capacity // _LARGE)
        plan.predicted_bytes = predicted_bytes
        self._follow(plan)
        self._note_whether_short(plan.target_bytes > 0)
        if step.had_hooks():
            self.kinds.add(plan)

    def _leavers_of(self, step: Step, needs: list[int], limit_bytes: float) -> Chosen:
        slack_bytes = self.capacity // EXTRA_SHARE
        before = self.plan.chosen
        return self.leavers.choose(step, needs, limit_bytes, before, slack_bytes)

    def _choose(self, step: Step, needs: list[int], limit_bytes: float) -> StepPlan:
        """Chooses what leaves, and how much of optimizers' state, if that is short."""
        chosen = self._leavers_of(step, needs, limit_bytes)
        short_bytes = max(
            int(chosen.short_bytes),
            self.optimizers.need_bytes(step, self.capacity) - self.capacity,
        )
        is_known = step.had_hooks() or self.state_bytes > 0
        state_bytes = 0
        if short_bytes > 0 and is_known:
            more_bytes = self.capacity // _MARGIN
            state_bytes = min(short_bytes + more_bytes, step.state_bytes)
            rest = [need_bytes - state_bytes for need_bytes in needs]
            chosen = self._leavers_of(step, rest, limit_bytes)
        return StepPlan(
            like=step.resting(step.needs(), chosen.away_bytes),
            chosen=chosen,
            target_bytes=chosen.missing_bytes,
            need_bytes=step.need_bytes + step.born_bytes + slack_bytes(self.capacity),
            state_bytes=state_bytes,
        )

    def _note_whether_short(self, is_short: bool) -> None:
        """Ends all planning after steps that fitted: more of them, each time."""
        if is_short:
            if self._fitting_steps >= self._patience:
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._fitting_steps, self.is_short = 0, True
            return
        self._fitting_steps += 1
        if self._fitting_steps >= self._patience:
            self.is_short = False
            self.kinds.clear()

    def room(self, waits: Waits) -> Room:
        """What it has for a step, and its link; the waits for copies in the last."""
        limit_bytes = int(self._limit_bytes(self.last))
        return Room(self.index, limit_bytes, self.link.speed(), waits)

    def expect(self, need_bytes: int, step: Step) -> None:
        """The next step will need so much, as calls are to run again.

        Args:
            need_bytes: It.
            step: It as the record of another says.
        """
        # What steps that were otherwise have taught is no more true, and what is
        # expected is no record by which a kind could be told.
        self.headroom = Headroom()
        self.kinds.clear()
        limit_bytes = self.room(()).limit_bytes
        plan = self._choose(step, step.needs(), limit_bytes)
        plan.target_bytes = max(need_bytes - limit_bytes, 0)
        self._follow(plan)

    def _learn_from_failure(self, step: Step) -> None:
        """It was planned for and not enough.

        Where others held what was sent, as a model's cache of keys and values does,
        something else is to leave. Large blocks cannot be helped, for small ones some
        more room will do.
        """
        self.leavers.blame(step.held)
        held_bytes = sum(size for _, size in step.held)
        short_bytes = self.plan.chosen.short_bytes
        is_explained = step.host_growth < max(2 * held_bytes, short_bytes)
        was_foreseen = step.need_bytes <= self.plan.need_bytes
        if self.plan.target_bytes > 0 and was_foreseen and not is_explained:
            self.headroom.grow(step.host_growth, step.fetch_growth, self.capacity)
        self.headroom.note_shortage()

    def _forget(self, step: Step) -> None:
        """What is saved no more is not kept for ever."""
        self.leavers.end_step(step)
        self._resized = {
            key: weak
            for key, weak in self._resized.items()
            if not weak.expired()  # type: ignore[no-untyped-call]
        }
