"""Training that needs more than the card, under oomph and in the ways people know.

Each program first runs without a limit, which tells how much memory it needs, how long
it takes (the floor), and by its record how fast it could be on a smaller card
(bound.py). Then the card is limited to a part of that, for oomph and for the ways by
hand. These run with oomph's allocator but ``offload:off``, so that they die where
nothing but their own saving helps. Where one dies, it runs with offload, too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from math import isnan, nan
from pathlib import Path
from typing import Any

from bound import bound_ms, problem_of
from recorded import Record
from support import GIB, ROOT, Result, run_script

SCRIPT = ROOT / "benchmarks" / "offload.py"
CARD = "96GiB,gpu=rtx4090,host=120GiB"
FACTORS = (1.2, 1.5, 2.0, 2.5, 4.0)
BY_HAND = ("checkpoint", "checkpoint2", "save_on_cpu", "evict")
HALVES = "accumulate"  # trains with other batches, and so stands beside
OFFLOAD = "offload:on-oom,host_limit:100GiB"
SETTLED = 3  # steps at the end that count
STEPS = {False: 4, True: 9}  # by whether there is offload, which has to settle
FEW_STEPS = {False: 2, True: 4}  # for save_on_cpu, whose copies really take their time

Step = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """A model and how it is trained, in words and as arguments of offload.py."""

    name: str
    arguments: tuple[str, ...]


TRAININGS = (
    Training("GPT-2 124 M, batch 16", ("gpt",)),
    Training("ResNet-50, batch 128", ("cnn",)),
    Training("Llama 1.1 B with LoRA, batch 4", ("lora",)),
    Training("Llama 1.1 B, batch 4", ("llama",)),
    Training("U-Net 114 M, batch 8", ("unet",)),
    Training("ViT-L, batch 48", ("vit",)),
    Training("MLP, 277 M parameters", ("mlp",)),
    Training("MLP, 277 M parameters, fused AdamW", ("mlp", "--fused")),
)


@dataclass(frozen=True)
class Run:
    """What became of one run; without steps it died for want of memory.

    Attributes:
        error: PyTorch's error, if it died.
    """

    peak_bytes: int
    steps: list[Step]
    error: str = ""

    @property
    def died(self) -> bool:
        return not self.steps

    def mean(self, key: str) -> float:
        """Of the steps that count; not a number if it died."""
        settled = self.steps[-SETTLED:]
        return (
            sum(step.get(key, 0) for step in settled) / len(settled) if settled else nan
        )

    @property
    def step_ms(self) -> float:
        return self.mean("step_ms")


def run(
    training: Training,
    way: str = "plain",
    limit_bytes: int | None = None,
    offload: bool = False,
    record: Path | None = None,
) -> Run:
    """Trains on the simulated card, under a limit or without."""
    plan = OFFLOAD if offload else "offload:off"
    steps = (FEW_STEPS if way == "save_on_cpu" else STEPS)[offload]
    limit = f",device_limit:{limit_bytes}" if limit_bytes else ""
    arguments = [
        *(*training.arguments, "--way", way, "--steps", str(steps)),
        *(["--record", str(record)] if record else []),
    ]
    result = run_script(SCRIPT, arguments, card=CARD, settings=plan + limit)
    if result.out_of_memory:
        return Run(0, [], _error_of(result))
    assert result.code == 0, result.error[-3000:]
    return Run(**json.loads(result.output.splitlines()[-1]))


def _error_of(result: Result) -> str:
    mark = "torch.OutOfMemoryError: "
    return next(x for x in result.error.splitlines() if x.startswith(mark))[len(mark) :]


class Hand:
    """A way by hand, under lower and lower limits."""

    def __init__(self, training: Training, way: str) -> None:
        self._run = partial(run, training, way)
        self._unlimited = self._run()
        self._needs_offload = False  # under the last limit, and so under a lower one

    def under(self, limit_bytes: int) -> ByHand:
        if not self._needs_offload:
            alone = self._run(limit_bytes)
            self._needs_offload = alone.died
            if not alone.died:
                return ByHand(self._unlimited, alone, has_offload=False)
        with_offload = self._run(limit_bytes, offload=True)
        return ByHand(self._unlimited, with_offload, has_offload=True)


@dataclass(frozen=True)
class ByHand:
    """A way by hand under a limit.

    Attributes:
        unlimited: Its run without a limit.
        limited: Its run under the limit; where it dies alone, that with offload.
        has_offload: Whether it needs offload.
    """

    unlimited: Run
    limited: Run
    has_offload: bool


@dataclass(frozen=True)
class Point:
    """One program under one limit, in all ways.

    Attributes:
        bound_ms: The best mixture of keeping, sending and recomputing whole blocks.
        bound_of_parts_ms: The same if any part of a block may be recomputed.
    """

    training: Training
    factor: float
    floor: Run
    record: Record
    oomph: Run
    by_hand: dict[str, ByHand]
    halves: ByHand
    bound_ms: float
    bound_of_parts_ms: float

    @property
    def limit_bytes(self) -> int:
        return int(self.floor.peak_bytes / self.factor)

    @property
    def missing_bytes(self) -> int:
        """M: what the program needs beside the limit."""
        return self.floor.peak_bytes - self.limit_bytes

    @property
    def fastest_by_hand(self) -> str | None:
        """Of those that finish, alone or with offload; None: all die."""
        times = {w: x.limited.step_ms for w, x in self.by_hand.items()}
        return min(
            (w for w in times if not isnan(times[w])), key=times.get, default=None
        )

    def link_ms(self, way: str) -> float:
        """What moving the missing bytes takes, at the speed of the simulated link."""
        rates = {"out": self.record.out_bytes_per_ms, "in": self.record.in_bytes_per_ms}
        return self.missing_bytes / rates[way]

    @property
    def forward_ms(self) -> float:
        """Of the floor."""
        return self.floor.mean("forward_ms")

    @property
    def backward_ms(self) -> float:
        """Of the floor, with the optimizer."""
        return self.floor.mean("backward_ms") + self.floor.mean("optimizer_ms")

    @property
    def steps_until_calm(self) -> int:
        """Steps after the first with a rescue, to the last that has any."""
        rescued = [i for i, step in enumerate(self.oomph.steps) if step["rescues"] > 0]
        return rescued[-1] - rescued[0] if rescued else 0

    @property
    def offloaded_share(self) -> float:
        """The most bytes on the host at a time, as a share of those missing."""
        return self.oomph.mean("most_host_bytes") / self.missing_bytes

    @property
    def sent_share(self) -> float:
        """Bytes sent ahead of need in a step, each storage once, to those missing."""
        return self.oomph.mean("step_sent_bytes") / self.missing_bytes

    def idle_share(self, way: str, which: str) -> float:
        """Idle time of the link to that from the first copy to the last.

        Args:
            way: ``out``, ``in`` or ``both``.
            which: ``idle_ms`` or, while a copy was ready, ``waiting_ms``.
        """
        found = [step[way] for step in self.oomph.steps[-SETTLED:]]
        between = sum(idle["between_ms"] for idle in found)
        return sum(idle[which] for idle in found) / between if between else 0.0

    def is_bound_by_link(self, way: str) -> bool:
        alone = self.forward_ms if way == "out" else self.backward_ms
        return self.link_ms(way) > alone

    def describe(self) -> str:
        return (
            f"{self.training.name}, {self.factor} x: needs "
            f"{self.floor.peak_bytes / GIB:.2f} GiB, has {self.limit_bytes / GIB:.2f}"
        )


def measure(training: Training) -> Iterator[Point]:
    """Runs a program in all ways, under all limits, two at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        floor = run(training, record=path)
        record = Record.read(path)
    whole, parts = problem_of(record.by_block()), problem_of(record)
    with ThreadPoolExecutor(2) as pool:
        ways = (*BY_HAND, HALVES)
        hands = list(pool.map(partial(Hand, training), ways))
        for factor in FACTORS:
            limit_bytes = int(floor.peak_bytes / factor)
            oomph = pool.submit(run, training, "plain", limit_bytes, offload=True)
            found = pool.map(Hand.under, hands, repeat(limit_bytes))
            by_hand = dict(zip(ways, found, strict=True))
            halves = by_hand.pop(HALVES)
            yield Point(
                training,
                factor,
                floor,
                record,
                oomph.result(),
                by_hand,
                halves,
                bound_ms(whole, limit_bytes),
                bound_ms(parts, limit_bytes),
            )
