"""What a whole step comes to of which a part ran out of memory.

What runs out is the first piece that finds no room. The rest of the step wants more,
and a remedy that saves the missing piece alone ends in the same error a moment later.
So the step runs again on tensors without memory (:mod:`oomph.replay`), as it is and as
a remedy would have it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from oomph import _C
from oomph.base.log import logger
from oomph.diagnosis.categories import PASSING, BlockList, Breakdown, Category
from oomph.memory import host, sites
from oomph.steps import levels

if TYPE_CHECKING:
    from oomph.replay.change import Change
    from oomph.replay.outcome import Outcome
    from oomph.replay.search import Search

SECONDS = 120.0  # of the CPU, for one error
SECONDS_IN_ALL = 360.0  # for all of a process: a loop that tries again goes on
JOINED = 2.02  # iterations' growth, with what differs: so much two have joined
SPARE = 0.005  # of the room, left for what no tensor shows

_spent_s = 0.0


class TimeUpError(Exception):
    """There is no time to run the step again, or to its end."""


class Span(NamedTuple):
    """A peak, which values may decide: how many rows masks choose.

    Attributes:
        least: Bytes.
        most: The same; as many, where it is known.
    """

    least: int
    most: int

    def plus(self, size_bytes: int) -> Span:
        """Both, with so many more."""
        return Span(self.least + size_bytes, self.most + size_bytes)


@dataclass
class Forecast:
    """What a step comes to.

    Attributes:
        outcome: Of the step as it is.
        base_bytes: What is there beside it: parameters, gradients, states, inputs.
        room_bytes: That there are for all.
        asked_bytes: What it had, and asked for, as it ran out of memory: it comes to no
            less.
        inputs_bytes: Of what was brought to the device, such as an iteration leaves.
        step_growth_bytes: By how much each of the last steps left more than the one
            before; 0: not all did.
    """

    outcome: Outcome
    base_bytes: int
    room_bytes: int
    asked_bytes: int
    inputs_bytes: int
    step_growth_bytes: int
    search: Search = field(repr=False)
    _known: dict[str, Outcome | None] = field(default_factory=dict, repr=False)

    @property
    def peak(self) -> Span:
        """All that is in use at the peak."""
        return self._span(self.outcome.fewest.peak_bytes, self.outcome.peak_bytes)

    def _span(self, least: int, most: int) -> Span:
        """Of what the step takes beside what is there."""
        asked = self.asked_bytes - self.base_bytes
        return Span(min(most, max(least, asked)), most).plus(self.base_bytes)

    @property
    def peak_bytes(self) -> int:
        """The same, the most."""
        return self.peak.most

    @property
    def is_in_function(self) -> bool:
        """Whether it is a part of what a ``torch.autograd.Function`` does itself.

        Its ``forward`` records nothing, and its ``backward`` runs again what it wants.
        """
        from torch.autograd import function

        frames = [frame for frame, _ in self.search.stack]
        around = frames[frames.index(self.search.stretch.frame) :]
        return any(frame.f_code.co_filename == function.__file__ for frame in around)

    @property
    def next(self) -> Span:
        """The peak; where iterations grow, of the iteration that ran out of memory."""
        if not self.outcome.grows_bytes:
            return self.peak
        least, most = (o.raw["peaks"][0] for o in (self.outcome.fewest, self.outcome))
        return self._span(int(least), int(most))

    @property
    def collected_bytes(self) -> int:
        """What iterations have left so far; one of them, if that does not show."""
        grows = self.outcome.grows_bytes
        return max(grows, int(self.outcome.raw["kept"]) + self.inputs_bytes)

    @property
    def loop(self) -> tuple[int, int]:
        """Where iterations grow, how many there are, and what all come to.

        Zeros: their number is unknown, or they are not alike.
        """
        from oomph.replay.turns import turns

        grows, count = self.outcome.grows_bytes, turns(self.search.stretch)
        if not (grows and count) or self.outcome.raw["cache"] or self.outcome.is_part:
            return 0, 0
        to_come = max(0, (count - 1) * grows - self.collected_bytes)
        first, second, *_ = self.outcome.raw["peaks"]
        # What is joined is there twice as it gets longer.
        return count, self.next.most + int(to_come * max(1, (second - first) / grows))

    @property
    def is_all_tried(self) -> bool:
        """Whether there was time to try all that was asked for."""
        return not self.search.time_limit.was_short

    @property
    def missing_bytes(self) -> int:
        """What there is no room for at the peak."""
        return self.missing_of(self.peak_bytes)

    def missing_of(self, size_bytes: int) -> int:
        """What of so many bytes there is no room for."""
        return max(0, size_bytes - self.room_bytes)

    @property
    def wanted_bytes(self) -> int:
        """The same of all iterations, as far as their number is known."""
        return self.missing_of(max(self.peak_bytes, self.loop[1]))

    def fits(
        self, peak: Span, outcome: Outcome | None = None, change: Change | None = None
    ) -> bool | None:
        """Whether there is room for so much, in each iteration.

        Args:
            peak: All that is in use at the peak.
            outcome: Of what was tried; None: of the step as it is.
            change: That was tried.

        Returns:
            None if it is not known: values decide, iterations grow and nobody knows how
            many there are, steps grow, a part did not run, or it is a matter of what no
            tensor shows.
        """
        tried = outcome or self.outcome
        to_come = self._to_come(tried, change)
        if to_come is not None:
            peak = Span(peak.least + to_come.least, peak.most + to_come.most)
        if peak.least > self.room_bytes:
            return False
        is_part = tried.is_part or self.outcome.is_part or self.step_growth_bytes
        return None if not self.has_room(peak) or to_come is None or is_part else True

    @property
    def is_all_known(self) -> bool:
        """Whether it is known what all iterations come to, and steps do not grow."""
        is_open = self.outcome.is_part or self.step_growth_bytes
        return not is_open and self._to_come(self.outcome, None) is not None

    def _to_come(self, tried: Outcome, change: Change | None) -> Span | None:
        """What iterations that did not run again would add; None: it is not known.

        Of smaller batches there are more: what they leave is as much together. So is
        what was left before, which may have been cut as well as it ran again.
        """
        is_cut = change is not None and change.batch is not None
        grows = self.outcome.grows_bytes if is_cut else tried.grows_bytes
        if not grows:
            return Span(0, 0)
        count, all_bytes = self.loop
        if not count:
            return None
        rest = max(0, all_bytes - self.peak_bytes)
        if is_cut:
            return Span(rest, rest + self.collected_bytes)
        rest = int(rest * min(1, grows / max(1, self.outcome.grows_bytes)))
        return Span(rest, rest)

    def has_room(self, peak: Span) -> bool:
        """Whether there is room for so much, in any case."""
        return peak.most <= self.room_bytes * (1 - SPARE)

    def attempt(self, changes: list[Change]) -> None:
        """Runs the step with each of some changes, several at a time."""
        new = [change for change in changes if repr(change) not in self._known]
        if new:
            found = self.search.attempt(new)
            self._known |= dict(zip(map(repr, new), found, strict=True))

    def outcome_with(self, change: Change) -> Outcome | None:
        """What a step with a change comes to; None: not known."""
        self.attempt([change])
        return self._known[repr(change)]

    def peak_with(self, change: Change) -> Span | None:
        """All that is in use at the peak of a step with a change; None: not known."""
        outcome = self.outcome_with(change)
        if outcome is None:
            return None
        span = Span(outcome.fewest.last_bytes, outcome.last_bytes)
        return span.plus(self.base_bytes - self._unkept(change, outcome))

    def _unkept(self, change: Change, outcome: Outcome) -> int:
        """What iterations before would not have left, had each had the change.

        With smaller batches there would have been more of them.
        """
        grows = self.outcome.grows_bytes
        if not grows or change.batch is not None:
            return 0
        share = min(1.0, outcome.grows_bytes / grows)
        return int(self.outcome.raw["kept"] * (1 - share))

    def batches(self) -> list[tuple[int, int]]:
        """Sizes that the batch may have, and along which dimension, likeliest first."""
        from oomph.replay.batches import batches

        return batches(self.search.stretch, self.outcome)

    def close(self) -> None:
        """Ends what runs for it; it can be asked nothing new."""
        global _spent_s
        self.search.close()
        _spent_s += self.search.time_limit.used_s

    def peak_without(self, what: str) -> Span:
        """The same, had something been smaller: see ``replay.step``'s ``without``."""
        least, most = (
            int(o.raw["without"][what]) + o.later_bytes
            for o in (self.outcome.fewest, self.outcome)
        )
        return Span(least, most).plus(self.base_bytes)


def predict(
    breakdown: Breakdown,
    snapshot: dict[str, Any],
    traceback: TracebackType,
    trains: bool,
    in_optimizer: bool,
) -> Forecast | None:
    """Runs the step again that ran out of memory.

    Args:
        breakdown: Who held the memory.
        snapshot: Of the failed allocation.
        traceback: Of its error.
        trains: Whether the step has a backward.
        in_optimizer: Whether it ran out in an optimizer's step.

    Returns:
        What it comes to; None if no step was seen that can run again.

    Raises:
        TimeUpError: There was no time to find out.
    """
    seconds = min(SECONDS, SECONDS_IN_ALL - _spent_s)
    if seconds <= 0:
        raise TimeUpError
    if not _may_fork():
        return None
    from oomph.replay.search import Search
    from oomph.replay.statements import stack_of

    held = breakdown.blocks
    blocks = [*zip(held.addrs, held.sizes, breakdown.categories, strict=True)]
    still = {*BlockList.take(held.device).addrs}  # an error lets go of some
    gone = {
        addr: size if kind == Category.ACTIVATION and addr in still else 0
        for addr, size, kind in blocks
        if kind in PASSING
    }
    kept = sum(size for _, size, kind in blocks if kind == Category.KEPT)
    base = sum(size for _, size, kind in blocks if kind not in PASSING) - kept
    is_forward = not snapshot["doing"] and not in_optimizer
    is_silent = is_forward and not snapshot["grad"]
    search = Search(
        stack_of(traceback),
        held.device,
        gone,
        trains,
        is_forward,
        is_silent,
        _sizes_by_line(held),
        seconds,
    )
    outcome = search.find()
    if outcome is None:
        _give_up(search)
        return None
    if outcome.raw["multiplies"]:
        there = [size for _, size, kind in blocks if kind == Category.WORKSPACE]
        one = max(there, default=_workspace_bytes(held.device))
        count = 1 + bool(outcome.raw["backwards"])  # backward has a thread of its own
        base += max(0, count - there.count(one)) * one
    room = sum(held.sizes) + snapshot["requested_bytes"]
    missing = snapshot["stats"]["oom_missing_bytes"]
    room -= missing + kept
    like, stayed = {*outcome.raw["left"]}, {*outcome.raw["there"]}
    inputs = [s for a, s, kind in blocks if kind == Category.INPUT and a in stayed]
    joined = JOINED * outcome.grows_bytes
    left = max(
        sum(size for size in inputs if size in like),
        sum(s for s in inputs if any(0 < n - s <= joined for n in like)),
    )
    growth = levels.growth_bytes(held.device)
    found = Forecast(outcome, base, room, room + missing, left, growth, search)
    if found.missing_bytes > 0:
        return found
    # There was too little room, so this is not what ran.
    logger.debug("a step of %d bytes has room, but ran out of it", found.peak_bytes)
    _give_up(search)
    return None


def _give_up(search: Search) -> None:
    """Nothing is known of the step.

    Raises:
        TimeUpError: For want of time.
    """
    global _spent_s
    search.close()
    _spent_s += search.time_limit.used_s
    if search.time_limit.was_short:
        raise TimeUpError


def _sizes_by_line(held: BlockList) -> dict[tuple[str, int], list[int]]:
    """The sizes of blocks by the line of forward that made them."""
    by_site: dict[int, list[int]] = defaultdict(list)
    for size, number in zip(held.sizes, held.sites, strict=True):
        if not number & _C.SITE_INFERRED:
            by_site[number].append(size)
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, sizes in by_site.items():
        site = sites.resolve(number)
        if site is not None:
            found[site.file, site.line] += sizes
    return dict(found)


def _may_fork() -> bool:
    """Whether copies of what Python holds would fit: children touch all of it."""
    from oomph.forked.child import at_a_time

    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    own_bytes = int(found[1]) << 10 if found else 0
    return own_bytes * (1 + at_a_time()) <= host.available_bytes()


def _workspace_bytes(device: int) -> int:
    """What cuBLAS takes with a thread's first product, by PyTorch's defaults."""
    import torch

    major, _ = torch.cuda.get_device_capability(device)
    return 32 << 20 if major >= 9 else 8320 << 10
