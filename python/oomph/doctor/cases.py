"""What is known of one error, and what advice on it consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomph.doctor.amounts import ZERO, Amount
from oomph.doctor.found import Found
from oomph.doctor.surroundings import Place, Traces
from oomph.doctor.verdict import Account, Shape

_PLENTY_SHARE = 0.1  # of the device


@dataclass(frozen=True)
class Case:
    """All that is known of an error.

    Attributes:
        found: Its text.
        account: What follows from its numbers.
        place: Where the program was.
        shapes: What the request may be.
        traces: What the log shows of the program.
        line: The error's, in the log.
    """

    found: Found
    account: Account
    place: Place
    shapes: list[Shape]
    traces: Traces
    line: int = 1

    @property
    def on_wsl(self) -> bool:
        """Whether the driver is that of Windows: it lends host memory, or is silent."""
        silent = "free" in self.found.amounts and self.account.free is None
        return silent or self.account.overcommitted

    @property
    def on_linux(self) -> bool:
        """Whether nothing shows another system, or another kind of device."""
        windows = "windows" in self.traces.seen or self.on_wsl
        return not windows and self.found.backend == "CUDA"

    @property
    def expandable(self) -> bool:
        """Whether the log had set expandable segments before."""
        return 0 < self.traces.expandable_line < self.line

    @property
    def plenty_free(self) -> bool:
        """Whether the device is far from full, so that less of it would not help."""
        now = self.account
        if now.room is None or now.total is None:
            return False
        return now.room.low_bytes > _PLENTY_SHARE * now.total.high_bytes

    @property
    def short(self) -> Amount | None:
        """What is missing, if surely something is."""
        missing = self.account.missing
        return missing if missing and missing.surely_above(ZERO) else None


@dataclass(frozen=True)
class Advice:
    """What may help, or what cannot.

    Attributes:
        action: What to do, or not to.
        why: With the numbers.
        weight: How likely it helps; only for their order.
    """

    action: str
    why: str
    weight: int = 0


@dataclass
class Advised:
    """All advice on an error.

    Attributes:
        helps: At most three, most likely first.
        cannot: What cannot help.
        unknown: What the text does not say although it matters.
    """

    helps: list[Advice] = field(default_factory=list)
    cannot: list[Advice] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
