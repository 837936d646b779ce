"""Training that needs more than the card, under oomph and in the ways people know.

Each program first runs without a limit, which tells how much memory it needs and how
long forward and backward take (the floor). Then the card is limited to a part of that,
for oomph and for the other ways; these run with oomph's allocator but ``offload:off``,
so that they die where nothing but their own saving helps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

from support import GIB, ROOT, Result, run_script

SCRIPT = ROOT / "benchmarks" / "offload.py"
CARD = "96GiB,gpu=rtx4090,host=120GiB"
FACTORS = (1.2, 1.5, 2.0)
OTHERS = ("save_on_cpu", "checkpoint", "accumulate")
STEPS = {"oomph": 9, "save_on_cpu": 2}  # the latter's copies really take their time
SETTLED = 3  # steps at the end that count

Step = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """A model and how it is trained, in words and as arguments of offload.py."""

    name: str
    arguments: tuple[str, ...]


TRAININGS = (
    Training("GPT-2 124 M, batch 16", ("gpt", "--batch", "16")),
    Training("ResNet-50, batch 128", ("cnn", "--batch", "128")),
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
        """Of the steps that count."""
        settled = self.steps[-SETTLED:]
        return sum(step[key] for step in settled) / len(settled)

    @property
    def step_ms(self) -> float:
        return self.mean("step_ms") if self.steps else float("nan")


def run(training: Training, way: str, limit_bytes: int | None = None) -> Run:
    """Trains on the simulated card, under a limit or without."""
    plan = "offload:on-oom,host_limit:100GiB" if way == "oomph" else "offload:off"
    limit = f",device_limit:{limit_bytes}" if limit_bytes else ""
    options = [] if way in ("oomph", "floor") else ["--way", way]
    arguments = [
        *(*training.arguments, *options),
        *("--steps", str(STEPS.get(way, 3))),
    ]
    result = run_script(SCRIPT, arguments, card=CARD, settings=plan + limit)
    if result.out_of_memory and way != "oomph":
        return Run(0, [], _error_of(result))
    assert result.code == 0, result.error[-3000:]
    return Run(**json.loads(result.output.splitlines()[-1]))


def _error_of(result: Result) -> str:
    mark = "torch.OutOfMemoryError: "
    return next(x for x in result.error.splitlines() if x.startswith(mark))[len(mark) :]


@dataclass(frozen=True)
class Point:
    """One program under one limit, in all ways."""

    training: Training
    factor: float
    floor: Run
    runs: dict[str, Run]  # by way
    without: dict[str, Run]  # the other ways, without a limit

    @property
    def limit_bytes(self) -> int:
        return int(self.floor.peak_bytes / self.factor)

    @property
    def missing_bytes(self) -> int:
        """M: what the program needs beside the limit."""
        return self.floor.peak_bytes - self.limit_bytes

    @property
    def oomph(self) -> Run:
        return self.runs["oomph"]

    def link_ms(self, way: str) -> float:
        """What moving the missing bytes takes, at the speed of the simulated link."""
        key = {"out": "d2h", "in": "h2d"}[way]
        steps = self.oomph.steps
        busy_ns = sum(step[f"{key}_busy_ns"] for step in steps)
        return (
            self.missing_bytes
            / sum(step[f"{key}_bytes"] for step in steps)
            * (busy_ns / 1e6)
        )

    @property
    def forward_ms(self) -> float:
        """Of the floor."""
        return self.floor.mean("forward_ms")

    @property
    def backward_ms(self) -> float:
        """Of the floor, with the optimizer."""
        return self.floor.mean("backward_ms") + self.floor.mean("optimizer_ms")

    @cached_property
    def bound_ms(self) -> float:
        """The best that link and compute allow when each missing byte goes and comes.

        It can be beaten: by what need not be moved, such as temporary tensors of an
        optimizer that works piece by piece.
        """
        return max(self.forward_ms, self.link_ms("out")) + max(
            self.backward_ms, self.link_ms("in")
        )

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

    def against(self, way: str) -> float:
        """oomph's step time to that of another way, without a limit if it died."""
        other = self.runs[way]
        return self.oomph.step_ms / (self.without[way] if other.died else other).step_ms

    def describe(self) -> str:
        return (
            f"{self.training.name}, {self.factor} x: needs "
            f"{self.floor.peak_bytes / GIB:.2f} GiB, has {self.limit_bytes / GIB:.2f}"
        )


def measure(training: Training) -> Iterator[Point]:
    """Runs a program in all ways, under all limits, two at a time."""
    floor = run(training, "floor")
    with ThreadPoolExecutor(2) as pool:
        alone = pool.map(run, repeat(training), OTHERS)
        without = dict(zip(OTHERS, alone, strict=True))
        for factor in FACTORS:
            limit_bytes = int(floor.peak_bytes / factor)
            ways = ("oomph", *OTHERS)
            found = pool.map(run, repeat(training), ways, repeat(limit_bytes))
            runs = dict(zip(ways, found, strict=True))
            yield Point(training, factor, floor, runs, without)
