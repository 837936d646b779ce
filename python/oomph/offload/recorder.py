"""Writes down what the step that runs on a device needs, when, and what is away.

Whenever a storage is saved or used, the core's high-water marks since the last such
event are read and reset: a look at the memory in use at these moments alone would miss
the peaks between them. What was away is added, so that the record says what the step
would need if nothing had left, and serves for any plan. It costs a call of the core for
each event.
"""

from __future__ import annotations

from collections.abc import Callable

from oomph import _C
from oomph.offload.leaving import Leaving
from oomph.offload.record import Event, Step
from oomph.offload.sends import Save
from oomph.offload.transfer import Link, OffloadedStorage


class Recorder:
    """The record of a device's step, as far as it has come.

    The caller holds ``transfer.lock``.

    Attributes:
        link: The device's link, which knows what is away.
        leaving: What was sent and still takes room on the device.
        step: The record.
        capacity: Bytes that blocks can have on the device.
        host_bytes: Bytes of blocks on the host.
    """

    def __init__(
        self, link: Link, is_there: Callable[[OffloadedStorage], bool]
    ) -> None:
        """Begins with an empty record.

        Args:
            link: The device's.
            is_there: Whether a storage that was sent still takes room.
        """
        self.link = link
        self.leaving = Leaving()
        self.step = Step()
        self.capacity = self.host_bytes = 0
        self._is_there = is_there
        self._gone_bytes = 0  # sent and gone, when last looked
        self._before_optimizer: int | None = None  # bytes in use
        self._in_optimizer = 0  # most bytes, as in a step, since then
        self._now_bytes = 0  # in use, on either side
        self.start_host_bytes = 0  # when the step began
        self._freed_bytes = 0  # as calls run again of which the record knows nothing,
        self._next_freed_bytes = 0  # and from the next note on
        self._since_event: tuple[int, ...] = 0, 0  # bytes, as in an event

    def place_of(self, sequence: int) -> int:
        """Where in the step a storage was saved first that was saved then."""
        place = sequence - self.step.first
        return self.step.same.get(place, place)

    def save_of(self, offloaded: OffloadedStorage) -> Save:
        """What was sent, as the record has it."""
        return offloaded.sequence - self.step.first, offloaded.bytes

    def note(self) -> tuple[int, int]:
        """Records the time since the last note; gives bytes in use and their limit."""
        self.link.settle()
        usage = _C.usage(self.link.device)
        now, high, host, host_high, device_high, self.capacity = usage
        self._now_bytes, self.host_bytes = now, host
        step = self.step
        gone_bytes = self._count_gone()
        was_gone_bytes = min(self._gone_bytes, gone_bytes) + self._freed_bytes
        self._freed_bytes = self._next_freed_bytes
        need_bytes = high + was_gone_bytes
        if self._before_optimizer is not None:
            self._in_optimizer = max(self._in_optimizer, need_bytes)
            step.optimizer_bytes = max(step.optimizer_bytes, need_bytes)
        else:
            step.need_bytes = max(step.need_bytes, need_bytes)
            self._note_growth(host_high - self.start_host_bytes)
            now_bytes = need_bytes, device_high + was_gone_bytes
            self._since_event = tuple(map(max, self._since_event, now_bytes))
        self._gone_bytes = gone_bytes
        step.host_bytes = max(step.host_bytes, host_high)
        return now - host, self.capacity

    def note_event(self, place: int, is_use: bool) -> None:
        """A storage is saved or used, and what that needed has been noted."""
        self.step.events.append(Event(place, is_use, *self._since_event))
        self._since_event = 0, 0

    def note_sent(self, offloaded: OffloadedStorage) -> None:
        """It is on its way to the host."""
        self.leaving.add(offloaded)
        self.step.away_bytes = max(self.step.away_bytes, self.link.away_bytes)

    def note_freed(self, size_bytes: int) -> None:
        """So much less is in use than if all were kept, after what is in use now."""
        self._next_freed_bytes = max(self._next_freed_bytes + size_bytes, 0)

    def skip(self) -> None:
        """What was in use since the last note counts for nothing."""
        _C.usage(self.link.device)

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

    def end_step(self, sequence: int, state: tuple[int, int]) -> Step:
        """Closes the record and begins the next.

        Args:
            sequence: How much has been saved in all steps.
            state: Bytes of optimizers' state on the host, and of all.
        """
        self.note_event(-1, is_use=True)  # the last that was needed
        step = self.step
        used = self.link.end_step()
        step.sent_bytes, step.fetched_bytes, step.waited_ms = used
        step.state_host_bytes, step.state_bytes = state
        self.step = Step(first=sequence)
        self._freed_bytes = self._next_freed_bytes = 0
        self.start_host_bytes = self.host_bytes
        return step

    def _note_growth(self, growth: int) -> None:
        step = self.step
        more = max(growth - step.host_growth - step.fetch_growth, 0)
        if self.link.restored_bytes > 0:
            step.fetch_growth += more
        elif more > 0:
            step.host_growth += more
            held = filter(self._is_there, self.leaving.take_held())
            step.held.update(map(self.save_of, held))

    def _count_gone(self) -> int:
        """Bytes that are away and that the device has no more."""
        self.leaving.look(self._is_there)
        return max(self.link.away_bytes - self.leaving.bytes, 0)
