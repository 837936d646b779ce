"""What leaves the device ahead of need, and when it comes back.

The first step that finds no device page is rescued at the moment of failure: blocks are
born on host, and kernels read them over the link. That step also tells how many bytes
were missing. From the next step on, as many bytes of what autograd saves are sent to
the host ahead of need, the earliest saved first, since they are needed last; backward
has them fetched again before it comes to them. When the pressure leaves, so does this.
"""

from __future__ import annotations

import bisect
import logging
import math
import os
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from oomph import _C, activations, cost, report
from oomph.sizes import format_size
from oomph.transfer import Link, Slot

logger = logging.getLogger("oomph")

_CALM_STEPS = 4  # steps that would have fitted, until the hooks are taken off
_SLACK = 0.005  # share of the device left free, as pages are not filled to the full
_SLACK_BYTES = 16 << 20  # and this beside
_LARGE_SHARE = 32  # a block of this part of the device may be put on the host
_EXTRA_SHARE = 50  # part of the device that is left free after a step that fell short
_BLIND = 0.4  # share of the device left free by a fetch before a step was recorded


@dataclass
class _Step:
    """What one step showed of a device."""

    first: int = 0  # sequence of the first tensor that it saved
    need_bytes: int = 0  # most bytes of blocks, on either side, at one time
    away_bytes: int = 0  # most that was away at one time
    sent_bytes: int = 0
    fetched_bytes: int = 0
    waited_ms: float = 0.0  # as far as it was known when the step ended
    host_bytes: int = 0  # most bytes of blocks born on host
    born_bytes: int = 0  # that the optimizer made and kept, such as its state
    saves: list[tuple[int, int]] = field(default_factory=list)  # place and bytes
    backwards: list[int] = field(default_factory=list)  # places at which one began
    # Of each forward with its backward: most bytes needed, and before which place that
    # was (None: in forward). What lies behind it had been used by then.
    peaks: list[tuple[int, int | None]] = field(default_factory=list)
    # By place in the step: bytes in use before what was saved there was used, without
    # what had been fetched.
    profile: dict[int, int] = field(default_factory=dict)

    def used_host(self) -> bool:
        """Whether anything of the device's was on the host."""
        return self.sent_bytes > 0 or self.host_bytes > 0


class _Device:
    """The planner's state of one device."""

    def __init__(self, index: int, budget: float) -> None:
        self.index = index
        self.link = Link(index)
        self.budget: float = budget  # bytes to be away at the peak
        self.extra_bytes = 0  # beside what is missing, as experience showed
        self._planned_need_bytes = 0
        self.capacity = 0  # bytes that blocks can have on it
        self.step = _Step()
        self.last = _Step()
        self.missing_bytes = 0
        self.calm_steps = 0
        self.useless: set[tuple[int, int]] = set()  # place and bytes
        self.away: list[weakref.ref[Slot]] = []
        self.sequences: list[int] = []  # of these, ascending
        self._leaving: weakref.WeakSet[Slot] = weakref.WeakSet()  # sent, not yet gone
        self._gone_bytes = 0  # sent and gone, when last looked
        self._is_saving = False  # forward runs; else backward
        self._before_optimizer: int | None = None  # bytes in use
        self._before = 0, 0.0  # bytes fetched and milliseconds waited, before this step

    # -- going out

    def wants(self, place: int, size_bytes: int) -> bool:
        """Whether a storage is to leave: the earliest, up to the budget."""
        if _C.offload_is_forbidden():
            return False
        if (place, size_bytes) in self.useless or self._is_used_at_peak(place):
            return False
        gap = self.budget - self.link.away_bytes
        if gap <= 0:
            return False
        return size_bytes <= gap or not self._fills(gap, place, size_bytes)

    def _is_used_at_peak(self, place: int) -> bool:
        """Whether backward will have fetched it already when memory is shortest."""
        turn = len(self.step.backwards)
        if turn >= len(self.last.peaks):
            return False
        _, peak = self.last.peaks[turn]
        return peak is not None and place > peak

    def _fills(self, gap: float, place: int, size_bytes: int) -> bool:
        """Whether a smaller storage that is still to come will fill the gap."""
        ends = self.last.backwards
        i = bisect.bisect_right(ends, place)
        end = ends[i] if i < len(ends) else place
        return any(
            place < later < end and gap <= other < size_bytes
            for later, other in self.last.saves
            if (later, other) not in self.useless
        )

    def send(
        self, storage: torch.UntypedStorage, version: object, sequence: int
    ) -> Slot | None:
        """As :meth:`Planner.send`, for this device."""
        self.note()
        place, size_bytes = sequence - self.step.first, storage.nbytes()
        self.step.saves.append((place, size_bytes))
        self._is_saving = True
        if not self.wants(place, size_bytes):
            return None
        try:
            slot = Slot(self.link, storage, version, sequence)
        except (MemoryError, _C.DriverError) as error:
            logger.debug("a saved tensor stays on the device: %s", error)
            return None
        self.away.append(weakref.ref(slot))
        self._leaving.add(slot)
        self.sequences.append(sequence)
        self.step.sent_bytes += slot.bytes
        self.step.away_bytes = max(self.step.away_bytes, self.link.away_bytes)
        return slot

    def note(self, place: int | None = None) -> tuple[int, int]:
        """Records the time since the last note; gives bytes in use and their limit."""
        now, high, host, host_high, self.capacity = _C.tide(self.index)
        step = self.step
        gone_bytes = self._count_gone()
        need_bytes = high + min(self._gone_bytes, gone_bytes)
        step.need_bytes = max(step.need_bytes, need_bytes)
        self._note_peak(need_bytes, place)
        self._gone_bytes = gone_bytes
        step.host_bytes = max(step.host_bytes, host_high)
        if place is not None:
            base = high - self.link.restored_bytes
            step.profile[place] = max(step.profile.get(place, 0), base)
        return now - host, self.capacity

    def _note_peak(self, need_bytes: int, place: int | None) -> None:
        peaks = self.step.peaks
        is_backward = place is not None and not self._is_saving
        turn = max(len(self.step.backwards) - is_backward, 0)
        while len(peaks) <= turn:
            peaks.append((0, None))
        if need_bytes > peaks[turn][0]:
            peaks[turn] = need_bytes, place

    def _count_gone(self) -> int:
        """Bytes that are away and that the device has no more."""
        for slot in list(self._leaving):
            if not slot.is_away or slot.has_left():
                self._leaving.discard(slot)
        return self.link.away_bytes - sum(slot.bytes for slot in self._leaving)

    # -- coming back

    def fetch_before(self, sequence: int) -> None:
        """Fetches what will be used next, as far as memory allows."""
        used, capacity = self.note(sequence - self.step.first)
        self._forget_stayed(sequence)
        end = bisect.bisect_left(self.sequences, sequence)
        while end > 0:
            end -= 1
            slot = self.away[end]()
            if slot is None or not slot.is_away:
                self._forget(end)
                continue
            if used + slot.bytes + self._margin(slot.sequence, sequence, used) > (
                capacity - self._slack()
            ):
                return
            try:
                slot.fetch()
            except torch.OutOfMemoryError as error:
                logger.debug("nothing is fetched ahead now: %s", error)
                return
            used += slot.bytes
            self._forget(end)

    def _margin(self, first: int, end: int, used: int) -> int:
        """By how much the rest will grow between now and the use of a slot."""
        start = self.step.first
        profile = self.last.profile
        ahead = [
            profile[place]
            for place in range(first - start, end - start)
            if place in profile
        ]
        if not ahead:
            return int(self.capacity * _BLIND)
        return max(max(ahead) + self.link.restored_bytes - used, 0)

    def _forget(self, index: int) -> None:
        del self.away[index], self.sequences[index]

    def _forget_stayed(self, sequence: int) -> None:
        """Where backward begins: learns what others hold and sending does not free."""
        if not self._is_saving:
            return
        self._is_saving = False
        self.step.backwards.append(sequence - self.step.first + 1)
        for slot in (reference() for reference in self.away):
            if slot is not None and slot.is_away and not slot.has_left():
                self.useless.add((slot.sequence - self.step.first, slot.bytes))
                slot.stay()

    def _slack(self) -> int:
        return int(self.capacity * _SLACK) + _SLACK_BYTES

    # -- a step ends

    def before_optimizer(self) -> None:
        """The optimizer is about to make its state, if it has none."""
        self._before_optimizer, _ = self.note()

    def _note_born(self) -> None:
        now, _ = self.note()
        if self._before_optimizer is not None:
            self.step.born_bytes = max(now - self._before_optimizer, 0)
        self._before_optimizer = None

    def _note_link(self) -> None:
        self.link.collect_waits()
        fetched_bytes, waited_ms = self.link.back_bytes, self.link.waited_ms
        self.step.fetched_bytes = fetched_bytes - self._before[0]
        self.step.waited_ms = waited_ms - self._before[1]
        self._before = fetched_bytes, waited_ms

    def end_step(self, rescued: bool, sequence: int, always: bool) -> None:
        self._note_born()
        self._note_link()
        step, self.last = self.step, self.step
        self.step = _Step(first=sequence)
        self._is_saving = False
        self.missing_bytes = max(step.need_bytes - self.capacity, 0)
        if always:
            self.budget = math.inf
            return
        if rescued and self.budget > 0 and step.need_bytes <= self._planned_need_bytes:
            # It was planned for and not enough: large blocks cannot be helped, for
            # small ones some more room will do.
            _C.foresee(self.index, self.capacity // _LARGE_SHARE)
            self.extra_bytes += min(step.host_bytes, self.capacity // _EXTRA_SHARE)
        need_bytes = step.need_bytes + step.born_bytes
        self._planned_need_bytes = need_bytes + self._slack()
        wanted = need_bytes + self._slack() + self.extra_bytes - self.capacity
        if wanted > 0:
            self.calm_steps = 0
            self.budget = wanted
        else:
            self.calm_steps += 1
            self.budget = 0 if self.calm_steps >= _CALM_STEPS else self.budget


class Planner:
    """Decides for all devices of the process; the policy of ``activations``."""

    def __init__(self, always: bool = False) -> None:
        self.always = always
        self._devices: dict[int, _Device] = {}
        self._sequence = 0

    def device(self, index: int) -> _Device:
        """The state of a device, new if it had none."""
        found = self._devices.get(index)
        if found is None:
            found = _Device(index, math.inf if self.always else 0)
            self._devices[index] = found
            found.step.first = self._sequence
        return found

    def send(
        self, storage: torch.UntypedStorage, version: object, sequence: int
    ) -> Slot | None:
        """Sends a storage to the host, or None if it is to stay."""
        return self.device(storage.device.index).send(storage, version, sequence)

    def saved(self) -> int:
        """Counts one saved tensor; gives its place among all of them."""
        self._sequence += 1
        return self._sequence

    def used(self, sequence: int) -> None:
        """Backward is about to use what was saved at this place."""
        for device in self._devices.values():
            device.fetch_before(sequence)

    def end_step(self, rescued_devices: set[int]) -> set[int]:
        """Plans the next step from the one that has ended.

        Returns:
            The devices that had something on the host in it.
        """
        activations.close_scope()
        for index in rescued_devices:
            self.device(index)
        for device in self._devices.values():
            rescued = device.index in rescued_devices
            device.end_step(rescued, self._sequence, self.always)
        return {d.index for d in self._devices.values() if d.last.used_host()}

    def before_optimizer(self) -> None:
        """An optimizer is about to take a step."""
        for device in self._devices.values():
            device.before_optimizer()

    def close(self) -> None:
        """Gives up what the core was told."""
        for device in self._devices.values():
            _C.foresee(device.index, 0)

    def is_wanted(self) -> bool:
        """Whether anything is to be offloaded."""
        return self.always or any(d.budget > 0 for d in self._devices.values())


_planner: Planner | None = None
_running = False


def start(always: bool = False) -> None:
    """Creates the planner; the hooks follow with the first shortage, or at once."""
    global _planner, _running
    if _planner is None:
        _planner = Planner(always)
    if _planner.is_wanted() and not _running:
        activations.start(_planner)
        _running = True


def stop() -> None:
    """Ends planning and forgets what was learnt; a shortage starts it anew.

    What was offloaded stays usable.
    """
    global _planner, _running
    if _running:
        activations.stop()
    if _planner is not None:
        _planner.close()
    _planner, _running = None, False


def _forget_in_child() -> None:
    """After a fork the core does nothing, so there is nothing to plan."""
    global _planner, _running
    _planner, _running = None, False
    activations.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


def note_shortage(device: int) -> None:
    """A block was born on host: from the next step on, something else leaves."""
    start()
    assert _planner is not None
    _planner.device(device)


def before_optimizer() -> None:
    """An optimizer is about to take a step."""
    if _planner is not None:
        _planner.before_optimizer()


def end_step(rescued_devices: set[int]) -> set[int]:
    """A step has ended; some devices were short of memory in it.

    Returns:
        The devices that had something on the host in it.
    """
    global _running
    if rescued_devices:
        start()
    if _planner is None:
        return set()
    offloading = _planner.end_step(rescued_devices)
    if _planner.is_wanted() and not _running:
        activations.start(_planner)
        _running = True
    elif _running and not _planner.is_wanted():
        activations.stop()
        _running = False
    return offloading


def explain() -> dict[int, dict[str, Any]]:
    """What the planner does on each device, and why, as data and in words.

    Returns:
        By device index: ``missing_bytes`` (what the last step needed beside what the
        device has), ``offloaded_bytes`` (the most that was away at one time in it),
        ``unreached_bytes`` (the most that was on the host all the same, since it is not
        saved for backward or others hold it), ``step_sent_bytes`` and
        ``step_fetched_bytes`` (over the link in it), ``step_waited_ms`` (that the
        device waited for copies back), the figures of the process that
        :func:`oomph.stats` tells too (``sent_bytes``, ``fetched_bytes``, ``waited_ms``,
        ``step_ms``, ``step_ms_without_offload``), and ``text``.

    Example:
        >>> print(oomph.planner.explain()[0]["text"])
    """
    devices = {} if _planner is None else _planner._devices
    return {index: _describe(device) for index, device in devices.items()}


def figures(device: int) -> dict[str, float]:
    """What :func:`oomph.stats` tells of a device's offload; see there."""
    found = None if _planner is None else _planner._devices.get(device)
    return {
        "sent_bytes": found.link.out_bytes if found else 0,
        "fetched_bytes": found.link.back_bytes if found else 0,
        "waited_ms": found.link.waited_ms if found else 0.0,
    }


def _describe(device: _Device) -> dict[str, Any]:
    last, times = device.last, cost.of_device(device.index)
    told = {
        "missing_bytes": device.missing_bytes,
        "offloaded_bytes": last.away_bytes,
        "unreached_bytes": last.host_bytes,
        "step_sent_bytes": last.sent_bytes,
        "step_fetched_bytes": last.fetched_bytes,
        "step_waited_ms": last.waited_ms,
        **figures(device.index),
        "step_ms": times.last_ms,
        "step_ms_without_offload": times.last_without_ms,
    }
    return {**told, "text": f"GPU {device.index}: {_explain(device)}."}


def _explain(device: _Device) -> str:
    last = device.last
    if device.budget <= 0:
        return "everything fits: nothing is offloaded"
    why = (
        "offload:always asks for it"
        if math.isinf(device.budget)
        else f"the last step needed {format_size(last.need_bytes)} where the device "
        f"has {format_size(device.capacity)}"
    )
    text = (
        f"{why}: of what forward saved, the earliest {format_size(last.away_bytes)} "
        "went to the host and came back before backward used it"
    )
    if last.host_bytes > 0:
        text += (
            f"; {format_size(last.host_bytes)} that is not saved for backward, or "
            "that others hold, lives on the host"
        )
    return f"{text}; {_cost(device)}"


def _cost(device: _Device) -> str:
    """What the copies of the last step cost, as expected and as measured."""
    last, times = device.last, cost.of_device(device.index)
    known = _C.stats(device.index)
    out, back = (
        (size_bytes / speed * 1e3 if speed > 0 else math.nan)
        for size_bytes, speed in (
            (last.sent_bytes, known["link_to_host_bytes_per_s"]),
            (last.fetched_bytes, known["link_to_device_bytes_per_s"]),
        )
    )
    text = (
        f"the link was busy for about {out:.1f} ms out and {back:.1f} ms back"
        if out >= 0
        else "the link's speed is not known yet"
    )
    text += f", and the device waited {last.waited_ms:.1f} ms for it"
    if times.last_ms > 0:
        text += f" in a step of {times.last_ms:.1f} ms"
    if times.last_without_ms > 0:
        text += f" (the last without offload took {times.last_without_ms:.1f} ms)"
    return text


def _rows(device: int) -> dict[str, str]:
    """What the table at exit says of this."""
    now = figures(device)
    if now["sent_bytes"] == 0:
        return {}
    times = cost.of_device(device)
    without = (
        f", {times.last_without_ms:.1f} ms without offload"
        if times.last_without_ms > 0
        else ""
    )
    return {
        "sent to the host ahead of need": format_size(int(now["sent_bytes"])),
        "fetched from there": f"{format_size(int(now['fetched_bytes']))}; the device "
        f"waited {now['waited_ms']:.1f} ms for it",
        "the last step took": f"{times.last_ms:.1f} ms{without}",
    }


report.more_rows.append(_rows)
