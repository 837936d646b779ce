"""A remedy, and what the rules that name remedies look at."""

from __future__ import annotations

from dataclasses import dataclass

from oomph.diagnosis.categories import Breakdown, Category
from oomph.diagnosis.forecast import Forecast

# What to do, and what it costs: tried on a step, or estimated.
AUTOCAST = (
    "torch.autocast('cuda', torch.bfloat16)",
    "matrix products are rounded to 8 bits; usually faster",
)
EIGHT_BITS = (
    "an optimizer with 8-bit states (bitsandbytes, torchao)",
    "rounded states, and another package",
)


def fused(optimizer: str) -> tuple[str, str]:
    """The same of an optimizer that works in one kernel."""
    return f"{optimizer}(..., fused=True)", "nothing; it is faster"


@dataclass(frozen=True)
class Remedy:
    """One way to save memory, as estimated for this program.

    Attributes:
        action: What to do, in a few words.
        saves_bytes: Bytes that it saves on this device at the step's peak; if that was
            not predicted, at the moment looked at.
        cost: What it costs, in words.
        enough: Whether a whole step fits with it alone; None: that is not known, or
            nothing is missing.
    """

    action: str
    saves_bytes: int
    cost: str
    enough: bool | None = None


@dataclass(frozen=True)
class Context:
    """What the rules look at.

    Attributes:
        breakdown: Who holds the memory.
        totals: Bytes of each category.
        stats: oomph's metrics of the device, as :func:`oomph.stats` has them.
        requested_bytes: Of the allocation that failed; 0: none did.
        missing_bytes: Bytes it was short of.
        forecast: What the step comes to; None: not predicted.
        in_optimizer: It failed in a step of an optimizer of PyTorch.
        autocast: Was on, or seems to be in use.
        device_count: Devices of this machine.
        offload: The setting.
        refusal: Why nothing was offloaded, as the error says it.
    """

    breakdown: Breakdown
    totals: dict[Category, int]
    stats: dict[str, int]
    requested_bytes: int
    missing_bytes: int
    forecast: Forecast | None
    in_optimizer: bool
    autocast: bool
    device_count: int
    offload: str
    refusal: str

    @property
    def wanted_bytes(self) -> int:
        """What is missing: of all that the step will want, where that is predicted."""
        if self.forecast is not None:
            return self.forecast.missing_bytes
        return self.missing_bytes

    @property
    def state_bytes(self) -> int:
        """What does not grow with the batch: parameters, gradients, states."""
        kept = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER)
        return sum(self.totals[category] for category in kept)

    @property
    def saves_for_backward(self) -> bool:
        """Whether forward is recorded."""
        return self.totals[Category.ACTIVATION] > 0
