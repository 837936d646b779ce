"""A remedy, and what the rules that name remedies look at."""

from __future__ import annotations

from dataclasses import dataclass

from oomph.diagnosis.categories import Breakdown, Category
from oomph.diagnosis.forecast import Forecast

TABLES = 0.5  # of the parameters are in embeddings

# What to do, and what it costs: tried on a step, or estimated.
AUTOCAST = (
    "torch.autocast('cuda', torch.bfloat16)",
    "matrix products and convolutions with 2 to 3 significant digits; usually faster",
)
EIGHT_BITS = (
    "an optimizer with 8-bit states (bitsandbytes, torchao)",
    "rounded states, and another package",
)
FACTORED = (
    "torch.optim.Adafactor, which keeps one row and one column instead of each matrix "
    "of states",
    "training differs: tune the learning rate again",
)
HALVES = (
    "parameters in bfloat16 (model.to(torch.bfloat16), or torch_dtype where it is "
    "loaded)",
    "values with 2 to 3 significant digits",
)
HOST_TABLES = (
    "the embedding tables in CPU memory",
    "each batch copies its rows to the GPU",
)
SPARSE = (
    "sparse=True for the embeddings, with SparseAdam",
    "each step updates only the rows of its batch",
)
ROW_WISE = (
    "row-wise Adagrad for the embeddings (torchrec, fbgemm)",
    "one adaptive rate per row, and another package",
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
        in_backward: It failed in backward, so that a graph is wanted.
        in_optimizer: It failed in a step of an optimizer of PyTorch.
        autocast: Was on, or seems to be in use.
        device_count: Devices of this machine.
        offload: The setting.
        refusal: Why nothing was offloaded, as the error says it.
        brings_data: What was asked for is brought to the device, not computed there.
    """

    breakdown: Breakdown
    totals: dict[Category, int]
    stats: dict[str, int]
    requested_bytes: int
    missing_bytes: int
    forecast: Forecast | None
    in_backward: bool
    in_optimizer: bool
    autocast: bool
    device_count: int
    offload: str
    refusal: str
    brings_data: bool

    def guess(self, action: str, cost: str, saves_bytes: int) -> Remedy:
        """Of which only that it is too little can be known."""
        enough = False if saves_bytes < self.missing_bytes else None
        return Remedy(action, saves_bytes, cost, enough)

    @property
    def keeps_floats(self) -> bool:
        """Whether nothing is trained, and most parameters have 32 bits an element."""
        wide = self.breakdown.program.wide_bytes
        trains = bool(self.breakdown.program.optimizers)
        return not trains and wide > self.totals[Category.PARAMETER] // 2

    @property
    def trains_tables(self) -> bool:
        """Whether most parameters are in embeddings."""
        program, parameters = self.breakdown.program, self.totals[Category.PARAMETER]
        return bool(program.optimizers) and program.table_bytes > TABLES * parameters

    @property
    def wanted_bytes(self) -> int:
        """What is missing: of all that the step will want, where that is predicted."""
        if self.forecast is not None:
            return self.forecast.wanted_bytes
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
