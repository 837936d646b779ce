"""How much of a device's memory must be elsewhere, as its last step showed.

A step is recorded (``recorder.py``): what it needed, when memory was shortest, what was
saved and used at which place. From this follow the target of the next step, which
storages leave to reach it, and when each must be back (``fetches.py``).
"""

from __future__ import annotations

import math
import weakref
from dataclasses import astuple, replace
from operator import sub

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph import _C
from oomph.base.log import logger
from oomph.memory.residency import is_hosted
from oomph.offload import transfer
from oomph.offload.blocks import Room
from oomph.offload.fetches import Fetches
from oomph.offload.headroom import EXTRA_SHARE, Headroom, Shortage, slack_bytes
from oomph.offload.kinds import SAME, Kinds, Predicted, Repeated, StepPlan
from oomph.offload.leavers import Chosen, Leavers
from oomph.offload.optimizers import OptimizerChoice, is_on
from oomph.offload.record import Step
from oomph.offload.recorder import Recorder
from oomph.offload.room import Staying
from oomph.offload.transfer import Link, OffloadedStorage
from oomph.recompute import timeline
from oomph.recompute.stopwatch import Waits

_SMALLER = 0.1  # share by which a step is smaller than expected, to be planned anew
_GUESSES = 8  # plans for one step of an unknown kind
_MUCH = 3  # part of the device that no single block is worth
_MARGIN = 100  # part of it by which more state leaves than has to
_LARGE = 32  # part of it that one is worth which goes to the host at once
_UNSURE = 32  # part of it that is kept free where nothing may leave
_NO_LINK = timeline.Link(1e-9, 1e-9)  # where nothing may leave


class DevicePlan:
    """The planner's state of one device.

    The caller holds ``transfer.lock``, but for :meth:`send` and :meth:`fetch_before`,
    which take it for themselves and give it up while they ask for memory.
    """

    def __init__(self, index: int, target_bytes: float, sends: bool = True) -> None:
        self.index = index
        self.sends = sends  # else nothing may leave
        self.link = Link(index)
        self.plan = StepPlan(target_bytes=target_bytes)  # of the step that runs
        self.kinds = Kinds()
        self._repeated = Repeated()
        self._saved_bytes = self._guesses = 0  # in this step; of what it will be
        self.shortage = Shortage(target_bytes > 0)
        self.headroom = Headroom()
        self.recorder = Recorder(self.link, self._is_there)
        self.fetches = Fetches(self.recorder)
        self.staying = Staying(self.link, self.fetches, self._note_late)
        self.last = Step()
        self.least_state_bytes = 0  # of optimizers' state, that are to be on the host
        self.leavers = Leavers()
        self.offloaded: weakref.WeakValueDictionary[int, OffloadedStorage] = (
            weakref.WeakValueDictionary()
        )  # the newest of each storage
        self._resized: dict[int, StorageWeakRef] = {}  # storages that change their size
        self._is_saving = False  # forward runs; else backward
        # Of storages that stay: where they were saved first.
        self._kept: dict[int, tuple[int, StorageWeakRef]] = {}
        self.optimizers = OptimizerChoice(self.link)

    @property
    def capacity(self) -> int:
        """Bytes that blocks can have on the device."""
        return self.recorder.capacity

    # -- going out

    def wants(self, place: int, size_bytes: int) -> bool:
        """Whether a storage is to leave: chosen, or new and the target not reached."""
        if not self.sends or _C.offload_is_forbidden():
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
        storage, step = tensor.untyped_storage(), self.recorder.step
        key, place = storage._cdata, sequence - step.first
        if key in self._resized:
            return False
        for offloaded in (self.offloaded.get(key), self.link.restored.get(key)):
            if offloaded is not None and offloaded.serves(tensor):
                step.same[place] = offloaded.sequence - step.first
                return offloaded
        self.recorder.note()
        self.recorder.leaving.age(sequence)
        self._is_saving = torch._C._current_graph_task_id() < 0
        first, reference = self._kept.get(key, (place, None))
        if reference is not None and not reference.expired():  # type: ignore[no-untyped-call]
            step.same[place] = first
            self.recorder.note_event(first, is_use=False)
            return False
        self.recorder.note_event(place, is_use=False)
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
        needs = step.needs(on_device=nearest.predicted.block_bytes > 0, factor=factor)
        state_bytes = self.kinds.state_bytes
        chosen = self.leavers.choose(
            step,
            [need_bytes - state_bytes for need_bytes in needs],
            self._limit_bytes(step),
            factor=factor,
        )
        return nearest.larger(factor, needs, chosen)

    def _follow(self, plan: StepPlan) -> None:
        """Does from now on what is planned for a kind of step."""
        if plan.predicted != self.plan.predicted:
            _C.predict_host(self.index, *astuple(plan.predicted))
        self.plan = plan

    def _note_sent(self, offloaded: OffloadedStorage) -> None:
        self.offloaded[offloaded.storage.cdata] = offloaded
        self.fetches.add(offloaded)
        self.recorder.note_sent(offloaded)

    def make_room(self, size_bytes: int) -> int:
        """Sends away so much of what stayed, if there is as much; gives how much."""
        # What is used up to now has been needed together with what leaves.
        with transfer.lock:
            _, capacity = self.recorder.note()
        freed_bytes = self.staying.make_room(size_bytes, capacity)
        with transfer.lock:
            self.recorder.note()
        return freed_bytes

    def _note_late(self, offloaded: OffloadedStorage) -> None:
        """It left only as memory had run out."""
        self._note_sent(offloaded)
        self.recorder.step.late_bytes += offloaded.bytes

    def _is_there(self, offloaded: OffloadedStorage) -> bool:
        """Whether a storage that was sent still takes room."""
        state = offloaded.state()
        if offloaded.is_away and state == transfer.CHANGED:
            self._resized[offloaded.storage.cdata] = offloaded.storage
            self._keep(offloaded)
        return offloaded.is_away and state != transfer.GONE

    # -- coming back

    def fetch_before(self, sequence: int) -> None:
        """Fetches what will be used next, as far as memory allows."""
        with transfer.lock:
            used, capacity = self.recorder.note()
            self.recorder.note_event(self.recorder.place_of(sequence), is_use=True)
            self._forget_stayed()
            limit = capacity - self.headroom.for_fetches(capacity)
            plan = self.plan
        self.fetches.ahead(sequence, plan, used, limit)

    def _forget_stayed(self) -> None:
        """Where backward begins: learns what others hold and sending does not free."""
        if not self._is_saving:
            return
        self._is_saving = False
        for offloaded in self.fetches.away():
            if offloaded.state() != transfer.GONE:
                self._keep(offloaded)
        self.recorder.leaving.look(self._is_there, at_all=True)

    def _keep(self, offloaded: OffloadedStorage) -> None:
        """Sending it did not help, and would not in the next step."""
        self.leavers.blame([self.recorder.save_of(offloaded)])
        offloaded.stay()

    # -- a step ends

    def end_step(self, rescued: bool, sequence: int, state: tuple[int, int]) -> None:
        """Plans the next step from the one that has ended, after the optimizer.

        Args:
            rescued: Whether blocks fell back to the host in it.
            sequence: How much has been saved in all steps.
            state: Bytes of optimizers' state on the host, and of all.
        """
        step = self.last = self.recorder.end_step(sequence, state)
        unreached_bytes = 0
        if rescued and math.isfinite(self.plan.target_bytes):
            target_bytes = int(self.plan.target_bytes)
            unreached_bytes = max(target_bytes - step.away_bytes, 0)
        self._saved_bytes = self._guesses = 0
        self._is_saving = False
        self._kept.clear()
        if rescued:
            self._learn_from_failure(step)
        else:
            self.headroom.trust(self.capacity)
        self._forget(step)
        if math.isfinite(self.plan.target_bytes):  # not offload:always
            self._plan_for(step, rescued, unreached_bytes)
        # What returns does so where there is room, which may take some steps.
        is_state_away = self.state_bytes > 0 or step.state_host_bytes > 0
        self.optimizers.choose(step, self.capacity, is_state_away)

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
        asked = (
            self._limit_bytes(step),
            self.least_state_bytes,
            self.leavers.changes,
            is_on(self.index),
        )
        plan = self._repeated.plan(
            step,
            None if rescued else asked,
            lambda: self._plan_anew(step, rescued, unreached_bytes),
        )
        self._follow(plan)
        if self.shortage.end_step(plan.target_bytes > 0):
            self.kinds.clear()
        if step.had_hooks():
            self.kinds.add(plan)

    def _plan_anew(self, step: Step, rescued: bool, unreached_bytes: int) -> StepPlan:
        limit_bytes = self._limit_bytes(step)
        predicted = self.plan.predicted
        if not (rescued or predicted.block_bytes > 0 or step.state_host_bytes > 0):
            plan = self._choose(step, step.needs(on_device=True), limit_bytes)
        else:
            # What a rescue put on the host might have a place, and what goes there at
            # once, if all that may leave makes it.
            plan = self._choose(step, step.needs(), limit_bytes)
            if plan.chosen.short_bytes == 0:
                unreached_bytes, predicted = 0, Predicted()
            elif not rescued:
                chosen = self._leavers_of(step, step.needs(on_device=True), limit_bytes)
                plan = replace(plan, chosen=chosen, target_bytes=chosen.missing_bytes)
        # Of what did not leave: blocks as large go to the host at once. If it is much
        # before anything could leave, optimizers' state does.
        if unreached_bytes > self.capacity // _MUCH and not step.had_hooks():
            plan.state_bytes = min(unreached_bytes, step.state_bytes)
        if unreached_bytes > 0:
            short_bytes = self.optimizers.short_bytes(
                step, self.capacity, plan.state_bytes
            )
            least_bytes = self.capacity // _LARGE
            wanted_bytes = max(unreached_bytes, short_bytes, least_bytes)
            is_alike = plan.state_bytes == self.plan.state_bytes and short_bytes <= 0
            is_alike &= step.host_growth >= least_bytes
            had_bytes = step.host_growth if is_alike else 0
            predicted = predicted.after_rescues(wanted_bytes, had_bytes)
        plan.predicted = predicted
        return plan

    def _leavers_of(self, step: Step, needs: list[int], limit_bytes: float) -> Chosen:
        slack_bytes = self.capacity // EXTRA_SHARE
        before = self.plan.chosen
        return self.leavers.choose(step, needs, limit_bytes, before, slack_bytes)

    def _choose(self, step: Step, needs: list[int], limit_bytes: float) -> StepPlan:
        """Chooses what leaves, and how much of optimizers' state, if that is short."""
        state_bytes = min(self.least_state_bytes, step.state_bytes)
        rest = [need_bytes - state_bytes for need_bytes in needs]
        chosen = self._leavers_of(step, rest, limit_bytes)
        optimizer_bytes = self.optimizers.short_bytes(step, self.capacity, state_bytes)
        short_bytes = max(int(chosen.short_bytes), optimizer_bytes)
        is_known = step.had_hooks() or self.state_bytes > 0
        if short_bytes > 0 and is_known:
            short_bytes += state_bytes + self.capacity // _MARGIN
            state_bytes = min(short_bytes, step.state_bytes)
            rest = [need_bytes - state_bytes for need_bytes in needs]
            chosen = self._leavers_of(step, rest, limit_bytes)
        return StepPlan(
            like=step,
            rest_bytes=list(map(sub, step.needs(), chosen.away_bytes)),
            chosen=chosen,
            target_bytes=chosen.missing_bytes,
            need_bytes=step.need_bytes + step.born_bytes + slack_bytes(self.capacity),
            state_bytes=state_bytes,
        )

    def room(self, waits: Waits) -> Room:
        """What it has for a step, and its link; the waits for copies in the last."""
        limit_bytes = int(self._limit_bytes(self.last))
        if self.sends:
            return Room(self.index, limit_bytes, self.link.speed(), waits)
        # An error is worse than some calls more that run again.
        limit_bytes -= self.capacity // _UNSURE
        return Room(self.index, limit_bytes, _NO_LINK, waits)

    def expect(self, need_bytes: int, step: Step) -> None:
        """The next step will need so much, as calls are to run again.

        Args:
            need_bytes: It.
            step: It as the record of another says.
        """
        # What steps that were otherwise have taught is no more true, and what is
        # expected is no record by which a kind could be known, nor as exact as one.
        self.headroom = Headroom.of_unknown(self.capacity)
        self.kinds.clear()
        limit_bytes = self.room(()).limit_bytes
        plan = self._choose(step, step.needs(), limit_bytes)
        plan.target_bytes = max(need_bytes - plan.state_bytes - limit_bytes, 0)
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
        was_predicted = step.need_bytes <= self.plan.need_bytes
        if self.plan.target_bytes > 0 and was_predicted and not is_explained:
            self.headroom.grow(step.host_growth, step.fetch_growth, self.capacity)
        self.headroom.note_shortage()

    def _forget(self, step: Step) -> None:
        """What is saved no more is not kept for ever."""
        self.leavers.end_step(step)
        self.staying.forget_used()
        self._resized = {
            key: weak
            for key, weak in self._resized.items()
            if not weak.expired()  # type: ignore[no-untyped-call]
        }
