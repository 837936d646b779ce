"""Whether a script fits a card in one way, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass

from oomph.fitting.cards import Target
from oomph.fitting.measuring import Way
from oomph.fitting.process.record import Record


@dataclass(frozen=True)
class Answer:
    """Whether a script fits a card in one way.

    Attributes:
        card: The card.
        way: Who gives out its memory.
        fits: Whether the script came through; False as well if it is not known.
        was_run: Whether it was run on this card; else its run on a roomy one answers.
        record: Of the run that answers.
        roomy: Of the run without a limit.
    """

    card: Target
    way: Way
    fits: bool
    was_run: bool
    record: Record
    roomy: Record

    @property
    def allocated_bytes(self) -> int:
        """Peak of what the script held."""
        return self.record.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Peak of what the allocator had of the card."""
        return self.record.reserved_bytes

    @property
    def host_bytes(self) -> int:
        """Peak of what oomph had in host memory."""
        return self.record.host_bytes

    @property
    def caught(self) -> bool:
        """Whether the script caught an out-of-memory error, and went on.

        In the rescue oomph itself catches some, as it tries what may run again.
        """
        return self.fits and self.record.failures > 0 and self.way is not Way.RESCUE

    @property
    def failed(self) -> bool:
        """Whether the script failed there, though not by an out-of-memory error.

        With all the memory that it wants it comes through: it may reckon with what is
        free, and find too little.
        """
        return self.record.failed

    @property
    def gave_up(self) -> bool:
        """Whether the run on the card took so long that it was not waited for."""
        return self.record.ending == "time"

    @property
    def is_too_small(self) -> bool:
        """Whether memory is what the script wants for there."""
        return not (self.fits or self.failed or self.gave_up) and self.is_known

    @property
    def is_known(self) -> bool:
        """Whether there is an answer: else the time for the question was up before."""
        return self.record.ending != "late"

    @property
    def step_ms(self) -> float | None:
        """Time of a step on the virtual clock; None: not known.

        It is known of a well-known card, and if it fits and takes steps.
        """
        is_known = self.card.has_rates and self.fits and self.record.step_ms
        return self.record.step_ms if is_known else None
