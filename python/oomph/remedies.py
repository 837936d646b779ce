"""What would help against a shortage of memory here: how much it saves, what it costs.

Each rule looks at who holds the memory (:mod:`oomph.holders`) and gives remedies, or
none where it cannot help. Figures are estimates from the blocks that are there; each
rule says what it assumes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oomph import sites
from oomph.holders import Category, Holders
from oomph.sizes import format_size

MIN_SHARE = 0.01  # of the memory held: less is no help
CHUNKS = 8  # that the loss is cut into
WIDE = 4096  # elements: a last dimension as large as this is a vocabulary


@dataclass(frozen=True)
class Remedy:
    """Something to do.

    Attributes:
        action: What, in a few words.
        saves_bytes: Of this device's memory, at the moment looked at; an estimate.
        cost: What it costs.
        enough: Whether it alone makes room for what was missing; None: nothing was.
            What the rest of the step will want is not known.
    """

    action: str
    saves_bytes: int
    cost: str
    enough: bool | None = None


@dataclass(frozen=True)
class Situation:
    """What the rules look at.

    Attributes:
        holders: Who holds the memory.
        totals: Bytes of each category.
        stats: oomph's figures of the device, as :func:`oomph.stats` has them.
        requested_bytes: Of the allocation that failed; 0: none did.
        missing_bytes: What it wanted for.
        in_optimizer: It failed in a step of an optimizer of PyTorch.
        autocast: Was on, or seems to be in use.
        device_count: Devices of this machine.
        offload: The setting.
        refusal: Why nothing was offloaded, as the error says it.
    """

    holders: Holders
    totals: dict[Category, int]
    stats: dict[str, int]
    requested_bytes: int
    missing_bytes: int
    in_optimizer: bool
    autocast: bool
    device_count: int
    offload: str
    refusal: str

    @property
    def activation_bytes(self) -> int:
        """What grows with the batch: saved, on its way, or asked for."""
        kept = (Category.ACTIVATION, Category.TEMPORARY, Category.INPUT)
        asked = 0 if self.in_optimizer else self.requested_bytes
        return sum(self.totals.get(category, 0) for category in kept) + asked

    @property
    def state_bytes(self) -> int:
        """What does not: parameters, gradients, the optimizer's state."""
        kept = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER)
        return sum(self.totals.get(category, 0) for category in kept)

    @property
    def saves_for_backward(self) -> bool:
        """Whether forward is recorded."""
        return self.totals.get(Category.ACTIVATION, 0) > 0

    def batch(self) -> int:
        """Its size: the first dimension of the largest input; 0: unknown."""
        shapes = [s for s, _ in self.holders.program.input_shapes if len(s) > 1]
        return max(shapes, key=math.prod)[0] if shapes else 0


def rank(situation: Situation) -> list[Remedy]:
    """All that help here: first those that are enough alone, each by what they save."""
    least = MIN_SHARE * (sum(situation.totals.values()) + situation.requested_bytes)
    missing = situation.missing_bytes
    found = [
        Remedy(
            remedy.action,
            int(remedy.saves_bytes),
            remedy.cost,
            remedy.saves_bytes >= missing if missing else None,
        )
        for rule in RULES
        for remedy in rule(situation)
        if remedy.saves_bytes > least
    ]
    return sorted(found, key=lambda r: r.saves_bytes, reverse=True)


# ---- Rules


def _leaks(now: Situation) -> Iterator[Remedy]:
    """What a watch has found to grow, in each of the steps watched."""
    leaks = sys.modules.get("oomph.leaks")
    if leaks is None:
        return
    try:
        found = leaks.report()
    except RuntimeError:  # nothing was watched
        return
    for finding in found.findings:
        if finding.device == now.holders.census.device and finding.line:
            yield Remedy(
                f"freeing what leaks: {finding.verdict} at "
                f"{Path(finding.line.file).name}:{finding.line.line}",
                min(finding.growth_bytes * found.steps, sum(now.totals.values())),
                "nothing",
            )


def _no_gradients(now: Situation) -> Iterator[Remedy]:
    """Evaluation that records forward keeps what only backward would need."""
    if now.holders.program.training is False and now.saves_for_backward:
        yield Remedy(
            "torch.no_grad() around evaluation, as no module is in training mode",
            now.totals[Category.ACTIVATION],
            "nothing",
        )


def _smaller_batch(now: Situation) -> Iterator[Remedy]:
    """Everything but parameters, gradients and states shrinks with the batch."""
    batch, grows = now.batch(), now.activation_bytes
    if batch < 2 or now.in_optimizer:
        return
    parts = 2
    while grows * (1 - 1 / parts) < now.missing_bytes and parts * 2 <= batch:
        parts *= 2
    trains = now.saves_for_backward or now.totals.get(Category.GRADIENT, 0) > 0
    yield Remedy(
        f"batch {batch} -> {batch // parts}"
        + (f", accumulating gradients over {parts}" if trains else ""),
        int(grows * (1 - 1 / parts)),
        "about the same time a step" if trains else "more, smaller batches",
    )


def _autocast(now: Situation) -> Iterator[Remedy]:
    """Half of what is saved in 32 bits; norms and losses stay as they are."""
    if now.autocast or not now.saves_for_backward:
        return
    if any(size == 2 for _, size in now.holders.program.parameter_shapes):
        return
    yield Remedy(
        "torch.autocast('cuda', torch.bfloat16)",
        int(now.totals[Category.ACTIVATION] * 0.4),
        "rounding to 8 bits in matrix products; mostly faster",
    )


def _by_class(now: Situation) -> dict[str, dict[int, int]]:
    """Saved bytes of each size, by the class whose lines asked for them."""
    census = now.holders.census
    found: dict[str, dict[int, int]] = {}
    names: dict[int, str] = {}
    for site, size, category in zip(
        census.sites, census.sizes, now.holders.categories, strict=True
    ):
        if category != Category.ACTIVATION or not site:
            continue
        if site not in names:
            known = sites.resolve(site)
            names[site] = known.function.rpartition(".")[0] if known else ""
        sizes = found.setdefault(names[site], {})
        sizes[size] = sizes.get(size, 0) + size
    return found


def _checkpointing(now: Situation) -> Iterator[Remedy]:
    """Of each block its input stays, and one block's activations come back at a time.

    The input is as large as what the blocks save most often. Where forward has not come
    to all blocks yet, this estimates too little.
    """
    by_class = _by_class(now)
    for name, count in now.holders.program.repeated.items():
        sizes = by_class.get(name, {})
        saved = sum(sizes.values())
        if not saved:
            continue
        usual = max(sizes, key=lambda size: sizes[size] // size)
        yield Remedy(
            f"checkpointing the {count} {name}",
            int(saved - usual * min(count, sizes[usual] // usual) - saved / count),
            "their forward is computed twice: about a third of a step",
        )


def _sequential(now: Situation) -> Iterator[Remedy]:
    """Of n modules in s segments stay s inputs, and one segment comes back."""
    count = now.holders.program.sequential
    segments = math.isqrt(count)
    if count < 4 or now.holders.program.repeated:
        return
    saved = now.totals.get(Category.ACTIVATION, 0)
    yield Remedy(
        f"checkpoint_sequential() with {segments} segments",
        int(saved * (1 - 1 / segments - segments / count)),
        "forward is computed twice: about a third of a step",
    )


def _vocabulary(now: Situation) -> tuple[int, int]:
    """Rows and columns of the logits: one for each token of the input; 0: unknown."""
    program = now.holders.program
    wide = [s for s, _ in program.parameter_shapes if len(s) == 2 and s[0] >= WIDE]
    tokens = [
        math.prod(s)
        for s, size in program.input_shapes
        if len(s) in (1, 2) and size in (4, 8)
    ]
    if not wide or not tokens:
        return 0, 0
    return max(tokens), max(wide, key=lambda s: s[0])[0]


def _chunked_loss(now: Situation) -> Iterator[Remedy]:
    """Logits and what is made of them, one chunk of rows at a time."""
    rows, columns = _vocabulary(now)
    if rows * columns == 0:
        return
    large = {rows * columns * size for size in (2, 4)}
    sizes = [*now.holders.census.sizes, now.requested_bytes]
    bytes_of_logits = sum(size for size in sizes if size in large)
    yield Remedy(
        f"cross-entropy in {CHUNKS} chunks of the logits' {rows} rows, recomputed",
        int(bytes_of_logits * (1 - 1 / CHUNKS)),
        "the head's matrix product is computed twice",
    )


def _optimizer(now: Situation) -> Iterator[Remedy]:
    """Temporaries of a step go with a fused one; 8-bit states take a quarter."""
    unfused = [n.rstrip("*") for n in now.holders.program.optimizers if "*" in n]
    if now.in_optimizer and unfused:
        yield Remedy(
            f"{unfused[0]}(..., fused=True)",
            now.totals.get(Category.TEMPORARY, 0) + now.requested_bytes,
            "nothing; it is faster",
        )
    state = now.totals.get(Category.OPTIMIZER, 0)
    if state:
        yield Remedy(
            "an optimizer with 8-bit states (bitsandbytes, torchao)",
            int(state * 0.75),
            "rounded states; another package",
        )


def _sharding(now: Situation) -> Iterator[Remedy]:
    """Parameters, gradients and states over all devices of the machine."""
    count = now.device_count
    if count < 2:
        return
    yield Remedy(
        f"FSDP (ZeRO-3) over the {count} devices",
        int(now.state_bytes * (1 - 1 / count)),
        "parameters go over the link in each pass",
    )


def _offload(now: Situation) -> Iterator[Remedy]:
    """The missing bytes and no more: what oomph does where it is allowed to."""
    missing = now.missing_bytes
    speed = now.stats["link_to_device_bytes_per_s"]
    limit = now.stats["host_limit_bytes"]
    if not missing or (limit and missing > limit and "host_limit" not in now.refusal):
        return
    each = f"{missing / speed * 1e3:.0f} ms a pass" if speed > 0 else "a pass"
    cost = f"{format_size(missing)} over the link: {each}"
    if now.offload == "off":
        yield Remedy("oomph's offload:on-oom", missing, cost)
    elif "strict" in now.refusal:
        yield Remedy("oomph without strict", missing, cost)
    elif "host_limit" in now.refusal:
        wanted = format_size(now.stats["host_bytes"] + now.requested_bytes)
        yield Remedy(f"oomph's host_limit: at least {wanted}", missing, cost)


RULES = (
    _leaks,
    _no_gradients,
    _smaller_batch,
    _autocast,
    _checkpointing,
    _sequential,
    _chunked_loss,
    _optimizer,
    _sharding,
    _offload,
)
