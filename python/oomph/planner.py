"""What leaves the device ahead of need, and when it comes back.

In the first step that runs out of device memory, blocks fall back to the host, where
kernels use them over the link. That step also shows how many bytes were missing. From
the next step on, oomph sends as many bytes of what autograd saves to the host ahead of
need: the earliest saved first, since backward needs them last. They are fetched before
backward comes to them. If memory runs out all the same, more of it leaves at that
moment. If the optimizer does not fit, it works piece by piece. All of this ends when
memory is no longer short.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph import _C
from oomph.base import log
from oomph.base.log import logger
from oomph.memory.stats import more_metrics
from oomph.offload import activations, idle, optimizers, report, transfer
from oomph.offload.blocks import Blocks
from oomph.offload.policy import DevicePlan
from oomph.offload.recorder import Recorder
from oomph.offload.room import Saved
from oomph.offload.staging import address_of
from oomph.offload.transfer import OffloadedStorage, hosted_bytes
from oomph.recompute.followers import Follower
from oomph.steps import events


class Planner:
    """Decides for all devices of the process; the policy of ``activations``.

    Any thread may call it: forward runs in those of the program, backward in one of
    autograd's for each device, and a shortage is told of in whichever met it. All that
    they share is guarded by ``transfer.lock``.
    """

    def __init__(self, always: bool = False, recompute: bool = True) -> None:
        self.always = always
        self.recompute = recompute
        self.devices: dict[int, DevicePlan] = {}
        self._sequence = 0
        self._has_old_workspaces = False  # from steps that were short
        self.blocks = Blocks(lambda: self._sequence + 1, self._skip, self._aside)

    @property
    def follower(self) -> Follower | None:
        """What follows the calls of modules in this step."""
        return self.blocks.follower

    def _skip(self, place: int) -> None:
        """The next tensor that is saved has this place, or a later one."""
        with transfer.lock:
            self._sequence = max(self._sequence, place - 1)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """What runs meanwhile is no need of the program's, and uses no host memory."""
        self.tell(Recorder.note)
        _C.forbid_offload(_C.BAN_REGION)
        try:
            yield
        finally:
            _C.allow_offload(_C.BAN_REGION)
            self.tell(Recorder.skip)

    def device(self, index: int) -> DevicePlan:
        """The state of a device, new if it had none."""
        found = self.devices.get(index)
        if found is not None:
            return found
        made = DevicePlan(index, math.inf if self.always else 0)
        with transfer.lock:
            made.recorder.step.first = self._sequence
            return self.devices.setdefault(index, made)

    def send(self, tensor: torch.Tensor, sequence: int) -> OffloadedStorage | None:
        """Sends its storage to the host, if it is not there, or None if it stays."""
        return self.device(tensor.device.index).send(tensor, sequence)

    def stays(self, tensor: torch.Tensor, saved: Saved) -> None:
        """A tensor was saved, whose storage may leave later."""
        device = self.device(tensor.device.index)
        with transfer.lock:
            device.staying.add(tensor.untyped_storage()._cdata, saved)

    def saved(self) -> int:
        """Counts one saved tensor; gives its place among all of them."""
        with transfer.lock:
            self._sequence += 1
            return self._sequence

    def used(self, sequence: int) -> None:
        """Backward is about to use what was saved at this place."""
        if self.follower is not None:
            self.follower.used(sequence)
        for device in list(self.devices.values()):
            device.fetch_before(sequence)

    def end_step(self, rescued_devices: set[int]) -> set[int]:
        """Plans the next step from the one that has ended.

        Returns:
            The devices that had something on the host in it.
        """
        activations.close_scope()
        for index in rescued_devices:
            self.device(index)
        self.tell(Recorder.after_optimizer)
        state = self._look_at_optimizers()
        with transfer.lock:
            for index, device in self.devices.items():
                device.end_step(
                    index in rescued_devices, self._sequence, state.get(index, (0, 0))
                )
        self._plan_blocks()
        self._move_state()
        self._renew_workspaces(bool(rescued_devices))
        with transfer.lock:
            return {d.index for d in self.devices.values() if d.last.used_host()}

    def _plan_blocks(self) -> None:
        """Chooses what runs again, for the device that is shortest of memory at first.

        Others send what they lack.
        """
        if self.always or not self.recompute or not self.devices:
            return
        blocks = self.blocks
        if blocks.has_device():
            device = self.devices[blocks.device]
        else:
            device = max(self.devices.values(), key=lambda d: d.plan.target_bytes)
        waits = device.link.take_step_waits()
        has_changed = blocks.end_step(device.last, device.room(waits))
        with transfer.lock:
            device.least_state_bytes = blocks.state_bytes
            if has_changed:
                device.expect(blocks.need_bytes, blocks.expected())

    def _move_state(self) -> None:
        """Moves optimizers' state to the host where nothing else helps.

        What is there and need not be returns by itself where there is room for it: the
        core is told of it. Not by a thread of autograd's, with which a step ends whose
        optimizers step in backward: it says nothing of the thread that launches work.
        """
        if torch._C._current_graph_task_id() >= 0:
            return
        for device in self.devices.values():
            if device.last.host_bytes == 0:
                continue
            looks = self.blocks.is_looking() and not device.is_far_short
            stays_bytes = 0 if looks else device.state_bytes
            state = idle.divide_state(device.index, stays_bytes)
            _C.rests([*state.leaves, *state.returns])
            if state.leaves:
                try:
                    _C.move(device.index, _C.TIER_HOST, state.leaves, True)
                except (RuntimeError, MemoryError) as error:
                    logger.debug("optimizers' state stays on the device: %s", error)
            _C.stays([*state.leaves, *state.stays])

    def _renew_workspaces(self, rescued: bool) -> None:
        """After a shortage: what cuBLAS took on a full device, it takes once more."""
        if rescued:
            self._has_old_workspaces = True
        elif self._has_old_workspaces and any(
            _C.stats(index)["step_host_used_bytes"] > 0 for index in self.devices
        ):
            self._has_old_workspaces = not idle.free_workspaces()

    def _look_at_optimizers(self) -> dict[int, tuple[int, int]]:
        """Bytes of optimizers' state on the host, and of all of it, by device."""
        with transfer.lock:
            if all(d.recorder.step.host_bytes == 0 for d in self.devices.values()):
                return {}
        found: dict[int, tuple[int, int]] = {}
        for optimizer in idle.optimizers():
            for tensor in idle.state_of(optimizer):
                if tensor.is_cuda:
                    hosted, size_bytes = found.get(tensor.device.index, (0, 0))
                    more = min(hosted_bytes(address_of(tensor)), tensor.nbytes)
                    both = hosted + more, size_bytes + tensor.nbytes
                    found[tensor.device.index] = both
        return found

    def before_optimizer(self) -> None:
        """An optimizer is about to work; within backward it is a part of that."""
        if torch._C._current_graph_task_id() < 0:
            if self.follower is not None:
                self.follower.finished()
            self.tell(Recorder.before_optimizer)

    def tell(self, note: Callable[[Recorder], object]) -> None:
        """Has each device note what an optimizer does."""
        with transfer.lock:
            for device in self.devices.values():
                note(device.recorder)

    def is_wanted(self) -> bool:
        """Whether anything that forward saves is to be offloaded."""
        return (
            self.always
            or self.follower is not None
            or any(d.is_short for d in self.devices.values())
        )


_planner: Planner | None = None
_may_recompute = True


def _put_hooks() -> None:
    """Puts the hooks on while anything that forward saves is to be offloaded.

    The caller holds the lock.
    """
    if _planner is not None and _planner.is_wanted():
        activations.start(_planner)
    else:
        activations.stop()


def allow_recompute(allowed: bool) -> None:
    """Whether calls of modules may run again in backward, once a planner starts."""
    global _may_recompute
    _may_recompute = allowed


def start(always: bool = False) -> Planner | None:
    """Creates the planner; the hooks follow with the first shortage, or at once.

    Returns:
        It; None while a batch finder runs, of whose tries nothing is learnt.
    """
    global _planner
    with transfer.lock:
        if _C.batch_finder_runs():
            return None
        if _planner is None:
            _planner = Planner(always, _may_recompute)
            _C.set_room_maker(_make_room)
        _put_hooks()
        return _planner


def stop() -> None:
    """Ends planning and forgets what was learnt; a shortage starts it anew.

    What was offloaded stays usable.
    """
    global _planner
    with transfer.lock:
        ended, _planner = _planner, None
        _C.set_room_maker(None)
        _put_hooks()
        for index in ended.devices if ended is not None else ():
            _C.foresee(index, 0)
            optimizers.stop(index)


def _make_room(device: int, size_bytes: int) -> int:
    """A block finds no room: sends so much away, if there is that; gives how much."""
    plan = _plan_of(device)
    return 0 if plan is None else plan.make_room(size_bytes)


def _forget_in_child() -> None:
    """After a fork the core does nothing, so there is nothing to plan."""
    global _planner
    _planner = None
    activations.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


def note_shortage(device: int) -> None:
    """A block fell back to the host: from the next step on, something else leaves."""
    planner = start()
    if planner is not None:
        planner.device(device)


def before_optimizer(_: torch.optim.Optimizer) -> None:
    """An optimizer is about to work."""
    if (planner := _planner) is not None:
        planner.before_optimizer()


def before_closure(_: torch.optim.Optimizer) -> None:
    """Forward and backward run within an optimizer's step."""
    if (planner := _planner) is not None:
        planner.tell(Recorder.interrupt_optimizer)


def after_optimizer(_: torch.optim.Optimizer) -> None:
    """An optimizer has taken a step."""
    if (planner := _planner) is not None:
        planner.tell(Recorder.after_optimizer)


def end_step(rescued_devices: set[int]) -> set[int]:
    """A step has ended; some devices were short of memory in it.

    Returns:
        The devices that had something on the host in it.
    """
    planner = start() if rescued_devices else _planner
    if planner is None:
        return set()
    offloading = planner.end_step(rescued_devices)
    with transfer.lock:
        _put_hooks()
        activations.cover_thread()
    return offloading


def explain() -> dict[int, dict[str, Any]]:
    """Says what the planner does on each device, and why, as data and in words.

    docs/how_offload_works.md describes the planner.

    Returns:
        A dict for each device that was ever short of memory, by its index. Its keys:

        * ``missing_bytes``: what the last step needed beyond what the device has, with
          all that runs again kept.
        * ``recomputed_calls``, ``recomputed_bytes``, ``recompute_ms``: calls of modules
          that run again in backward, what that frees, and about how long it takes.
        * ``expected_step_ms``: what a step is expected to take with that; 0 if none
          runs again.
        * ``left_alone``: why other calls do not run again, and how many.
        * ``offloaded_bytes``: the most that was away at one time in that step.
        * ``state_host_bytes``: bytes of optimizers' state that are on the host.
        * ``step_host_used_bytes``: what the last step used on host pages, as
          :func:`oomph.stats` has it.
        * ``unreached_bytes``: the most that was on the host besides, since it is not
          saved for backward or others hold it.
        * ``step_sent_bytes``, ``step_fetched_bytes``: what crossed the link in that
          step.
        * ``step_sent_late_bytes``: of what was sent, what left only when memory had run
          out, as the plan was not enough.
        * ``step_waited_ms``: how long the device waited for copies back in it.
        * ``sent_bytes``, ``fetched_bytes``, ``waited_ms``, ``step_ms``,
          ``step_ms_without_offload``: as :func:`oomph.stats` has them.
        * ``text``: all of this in words.

    Example:
        >>> for device, plan in oomph.planner.explain().items():
        ...     print(plan["text"])
    """
    with transfer.lock:
        plans = {} if _planner is None else _planner.devices
        return {
            index: report.describe(plan, _blocks_of(index))
            for index, plan in plans.items()
        }


def _plan_of(device: int) -> DevicePlan | None:
    planner = _planner
    return None if planner is None else planner.devices.get(device)


def _blocks_of(device: int) -> Blocks | None:
    """What runs again on a device; None: nothing was looked at there."""
    blocks = _planner.blocks if _planner is not None else None
    return blocks if blocks is not None and blocks.device == device else None


def metrics(device: int) -> dict[str, float]:
    """What :func:`oomph.stats` tells of a device's offload; see there."""
    return report.metrics(_plan_of(device))


figures = metrics  # its name up to 0.1


def _rows(device: int) -> dict[str, str]:
    """What the table at exit says of this."""
    plan = _plan_of(device)
    return {} if plan is None else report.rows(plan, _blocks_of(device))


log.more_rows.append(_rows)
more_metrics.append(metrics)
events.before_optimizer.append(before_optimizer)
events.before_closure.append(before_closure)
events.after_optimizer.append(after_optimizer)
events.ending.append(end_step)
