"""How much of a script a run covers, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from oomph.fitting.process.record import Record


@dataclass(frozen=True)
class Extent:
    """What a run covers.

    Attributes:
        steps: After so many the script is ended.
        looks_on: Whether more steps are seen, to know which has the peak.
        until: The step that has it, after which the script is ended; 0: not known.
        ends_epochs: Whether the epoch of these steps is ended, for what follows.
        looks_ahead: Whether batches that are to come are looked at, and the larger ones
            come first.
        ahead_step: The step after which some come first, as a look has shown; 0: none.
        ahead: Their indices.
        ahead_more: Indices of these and of those that are left out for want of time.
        is_whole: Whether the script runs as it is: to its end, or to that step.
        keeps_files: Whether it changes no file of before, nor writes tensors, from its
            first use of a GPU on.
    """

    steps: int = 6
    looks_on: bool = False
    until: int = 0
    ends_epochs: bool = True
    looks_ahead: bool = False
    ahead_step: int = 0
    ahead: Sequence[Any] = ()
    ahead_more: Sequence[Any] = ()
    is_whole: bool = False
    keeps_files: bool = True

    @classmethod
    def of(cls, steps: int | None) -> Extent:
        """So many steps; None: as many as it takes to see the peak."""
        if steps is not None:
            return cls(steps)
        return cls(looks_on=True, looks_ahead=True)

    @classmethod
    def whole(cls, until: int = 0) -> Extent:
        """All of a script, or all up to a step."""
        return cls(until=until, ends_epochs=False, is_whole=True)

    def learned(self, record: Record) -> Extent:
        """What is enough, as a run that covers this has shown."""
        ends_epochs = self.ends_epochs and record.later != "too long"
        found = replace(self, ends_epochs=ends_epochs)
        if not (self.looks_on or self.looks_ahead):
            return found
        is_seen = record.enough > 0 or not record.ended  # or it comes after the steps
        return replace(
            found,
            looks_on=False,
            until=record.until if is_seen else len(record.steps_bytes) + 1,
            looks_ahead=False,
            ahead_step=record.ahead_step if record.ahead else 0,
            ahead=record.ahead,
            ahead_more=record.ahead_more,
        )

    def with_more(self) -> Extent:
        """With all batches that are known to be larger, those left out as well."""
        until = self.until + len(self.ahead_more) - len(self.ahead)
        return replace(self, ahead=self.ahead_more, until=until)
