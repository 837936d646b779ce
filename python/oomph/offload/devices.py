"""The plans of all devices of the process, and the calls that run again.

Forward and backward come here: with each tensor that is saved, and each that is used.
What is of one device goes on to its plan (``policy.py``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from oomph import _C
from oomph.base import state
from oomph.base.log import logger
from oomph.memory.residency import address_of, hosted_bytes
from oomph.offload import activations, idle, transfer
from oomph.offload.blocks import Blocks
from oomph.offload.policy import DevicePlan
from oomph.offload.recorder import Recorder
from oomph.offload.room import Saved
from oomph.offload.transfer import OffloadedStorage
from oomph.recompute.followers import Follower

_MUCH = 3  # part of a device


@dataclass(frozen=True)
class Mode:
    """What may be done, and from when on.

    Attributes:
        always: Whether everything that may leave does.
        sends: Whether anything may leave.
        recompute: Whether calls of modules may run again in backward,
        early: and do so from the first step on.
    """

    always: bool = False
    sends: bool = True
    recompute: bool = True
    early: bool = False

    @property
    def starts_at_once(self) -> bool:
        """Whether nothing has to be short of memory first."""
        return self.always or self.early


class Planner:
    """Decides for all devices of the process; the policy of ``activations``.

    Any thread may call it: forward runs in those of the program, backward in one of
    autograd's for each device, and a shortage is reported in whichever met it. All that
    they share is guarded by ``transfer.lock``.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.devices: dict[int, DevicePlan] = {}
        self._sequence = 0
        self._has_old_workspaces = False  # from steps that were short
        self._saves_inputs = False  # of a call that will run again
        self.blocks = Blocks(self, mode.early)

    @property
    def follower(self) -> Follower | None:
        """What follows the calls of modules in this step."""
        return self.blocks.follower

    def place(self) -> int:
        """The place of the tensor that is saved next."""
        return self._sequence + 1

    def skip(self, place: int) -> None:
        """The next tensor that is saved has this place, or a later one."""
        with transfer.lock:
            self._sequence = max(self._sequence, place - 1)

    @contextlib.contextmanager
    def inputs_at(self, place: int) -> Iterator[None]:
        """Meanwhile what is saved are the inputs of a call that began at this place."""
        with transfer.lock:
            sequence, self._sequence = self._sequence, place - 1
        self._saves_inputs = True
        try:
            yield
        finally:
            self._saves_inputs = False
            with transfer.lock:
                self._sequence = sequence

    def convert(self) -> Follower:
        """Gives a follower of all calls that are to come, in place of the present."""
        return self.blocks.convert()

    def used_bytes(self) -> int:
        """Bytes in use on the device whose calls run again."""
        return torch.cuda.memory_allocated(self.blocks.device)

    def sizes(self, device: int) -> tuple[int, int]:
        """Bytes that a call must free to be worth a trial, and may free at most."""
        plan = self.device(device)
        with transfer.lock:
            _, capacity = plan.recorder.note()
        return self.blocks.sizes(capacity)

    def note_freed(self, device: int, size_bytes: int) -> None:
        """So much less is in use on a device than if all were kept."""
        plan = self.device(device)
        with transfer.lock:
            plan.recorder.note_freed(size_bytes)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What runs meanwhile is no need of the program's, and uses no host memory."""
        self.record(Recorder.note)
        _C.forbid_offload(_C.BAN_TRIAL)
        try:
            yield
        finally:
            _C.allow_offload(_C.BAN_TRIAL)
            self.record(Recorder.skip)

    def device(self, index: int) -> DevicePlan:
        """The state of a device, new if it had none."""
        found = self.devices.get(index)
        if found is not None:
            return found
        spared = state.settings()["offload"] == "auto" and _C.shares_memory(index)
        sends = self.mode.sends and not spared  # it would free nothing
        made = DevicePlan(index, math.inf if self.mode.always else 0, sends)
        with transfer.lock:
            made.recorder.step.first = self._sequence
            return self.devices.setdefault(index, made)

    def send(self, tensor: torch.Tensor, sequence: int) -> OffloadedStorage | None:
        """Sends its storage to the host, if it is not there, or None if it stays."""
        if self._saves_inputs:
            return None
        return self.device(tensor.device.index).send(tensor, sequence)

    def kept(self, tensor: torch.Tensor, saved: Saved) -> None:
        """A tensor was saved, whose storage may leave later."""
        if self._saves_inputs:
            return
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
        self.record(Recorder.after_optimizer)
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
        if self.mode.always or not self.mode.recompute or not self.devices:
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
        core is informed. Not by a thread of autograd's, with which a step ends whose
        optimizers step in backward: it says nothing of the thread that launches work.
        """
        if torch._C._current_graph_task_id() >= 0:
            return
        for device in self.devices.values():
            if device.last.host_bytes == 0:
                continue
            state = idle.divide_state(device.index, self._state_bytes(device))
            _C.mark_idle([*state.leaves, *state.returns])
            if state.leaves:
                try:
                    _C.move(device.index, _C.TIER_HOST, state.leaves, True)
                except (RuntimeError, MemoryError) as error:
                    logger.debug("optimizers' state stays on the device: %s", error)
            _C.unmark_idle([*state.leaves, *state.stays])

    def _state_bytes(self, device: DevicePlan) -> int:
        """Of optimizers' state, that are to be on the host in the next step.

        While calls are looked at all is back, so that the step is one without a plan;
        but not if that is much: then there is no room to try a call.
        """
        if not self.blocks.is_looking():
            return device.state_bytes
        if device.state_bytes <= device.capacity // _MUCH:
            return 0
        return device.state_bytes + self.blocks.trial_bytes

    def _renew_workspaces(self, rescued: bool) -> None:
        """After a shortage: what cuBLAS took on a full device, it takes once more."""
        if rescued:
            self._has_old_workspaces = True
        elif self._has_old_workspaces and any(
            _C.stats(index)["step_host_used_bytes"] > 0 for index in self.devices
        ):
            self._has_old_workspaces = not idle.free_workspaces()

    def _look_at_optimizers(self) -> dict[int, tuple[int, int]]:
        """Bytes of optimizers' state on the host, and of all of it, by device.

        None are reported where that is of no use.
        """
        with transfer.lock:
            used = any(d.recorder.step.host_bytes > 0 for d in self.devices.values())
            if not (used or self.blocks.is_looking()):
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
            self.record(Recorder.before_optimizer)

    def record(self, note: Callable[[Recorder], object]) -> None:
        """Has each device note what an optimizer does."""
        with transfer.lock:
            for device in self.devices.values():
                note(device.recorder)

    def is_wanted(self) -> bool:
        """Whether anything that forward saves is to be offloaded."""
        return (
            self.mode.always
            or self.follower is not None
            or any(d.shortage.is_on for d in self.devices.values())
        )
