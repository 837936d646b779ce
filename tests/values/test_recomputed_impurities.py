"""Modules whose forward does more than compute are found before they run twice.

Each counts, draws, keeps or changes something in a way of its own. What it did must be
what it does where nothing runs again: nothing twice, nothing lost.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recomputing import (
    WIDTH,
    check_recomputed,
    train,
)
from support import Simulated
from torch import nn

CARD = "256MiB,context=0,memory=values,cc=8.6,host=8GiB"
card = Simulated(CARD, "reserve:0,host_limit:4GiB")

COUNTS = {"calls": 0}
CALLS = 0
NUMBERS = itertools.count()


class Pure(nn.Module):
    """A block of which much is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x)


def chain(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH))


# ---- what it counts and keeps


class CountsItself(Pure):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.compute(x) * (1 + self.calls % 3)

    def found(self) -> Any:
        return self.calls


class CountsInAGlobal(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        return self.compute(x)

    def found(self) -> Any:
        global CALLS
        calls, CALLS = CALLS, 0
        return calls


class CountsInADict(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNTS["calls"] += 1
        return self.compute(x)

    def found(self) -> Any:
        calls, COUNTS["calls"] = COUNTS["calls"], 0
        return calls


def counting() -> nn.Module:
    calls = 0

    class CountsInAClosure(Pure):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return self.compute(x)

        def found(self) -> Any:
            return calls

    return CountsInAClosure()


class CountsOnItsClass(Pure):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CountsOnItsClass.calls += 1
        return self.compute(x)

    def found(self) -> Any:
        calls, CountsOnItsClass.calls = CountsOnItsClass.calls, 0
        return calls


class CountsOnAParent(CountsOnItsClass):
    """The attribute belongs to the class above."""


class CountsInAFunction(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count_in_function()
        return self.compute(x)

    def found(self) -> Any:
        calls, count_in_function.calls = count_in_function.calls, 0  # type: ignore
        return calls


def count_in_function() -> None:
    count_in_function.calls += 1  # type: ignore[attr-defined]


count_in_function.calls = 0  # type: ignore[attr-defined]


def count_by_default(kept: list[int] = []) -> int:  # noqa: B006
    kept.append(1)
    return len(kept)


class CountsInADefault(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count_by_default()
        return self.compute(x)

    def found(self) -> Any:
        kept = count_by_default.__defaults__[0]  # type: ignore[index]
        calls = len(kept)
        kept.clear()
        return calls


class Registry:
    """A class that is never made, only counted on."""

    calls = 0


class CountsOnAnotherClass(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Registry.calls += 1
        return self.compute(x)

    def found(self) -> Any:
        calls, Registry.calls = Registry.calls, 0
        return calls


class CountsInAnotherModule(Pure):
    """In a module of Python's that it imports."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import recomputing

        recomputing.calls = getattr(recomputing, "calls", 0) + 1
        return self.compute(x)

    def found(self) -> Any:
        import recomputing

        calls = recomputing.calls  # type: ignore[attr-defined]
        recomputing.calls = 0  # type: ignore[attr-defined]
        return calls


class Appends(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.norms: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.compute(x)
        self.norms.append(y.detach().norm().cpu())
        return y

    def found(self) -> Any:
        return [float(norm) for norm in self.norms]


class AppendsALot(Appends):
    """To a list of which only the length is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = [torch.zeros(())] * 2000


class ReplacesInALongList(Pure):
    """In a list of which only the length is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = [0] * 2000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts[7] += 1
        return self.compute(x)

    def found(self) -> Any:
        return self.counts[7]


class CountsByItertools(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x) * (1 + next(self.numbers) % 3)

    def found(self) -> Any:
        return next(self.numbers)


class CountsByAGlobalIterator(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(NUMBERS)
        return self.compute(x)

    def found(self) -> Any:
        global NUMBERS
        count, NUMBERS = next(NUMBERS), itertools.count()
        return count


class Cycles(Pure):
    """By an iterator whose text tells nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = itertools.cycle([1.0, 2.0, 3.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x) * next(self.scales)

    def found(self) -> Any:
        return next(self.scales)


class CountsInAGenerator(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = (i for i in range(10**6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(self.numbers)
        return self.compute(x)

    def found(self) -> Any:
        return next(self.numbers)


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class CountsInSlots(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.kept = Slots()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.calls += 1
        return self.compute(x)

    def found(self) -> Any:
        return self.kept.calls


class CountsInAnArray(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.calls = np.zeros(1, dtype=np.int64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        return self.compute(x)

    def found(self) -> Any:
        return int(self.calls[0])


class CountsDeepDown(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.kept = {"a": [{"b": [{"c": [{"calls": 0}]}]}]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept["a"][0]["b"][0]["c"][0]["calls"] += 1  # type: ignore
        return self.compute(x)

    def found(self) -> Any:
        return self.kept["a"][0]["b"][0]["c"][0]["calls"]  # type: ignore


class Remembers(Pure):
    """Keeps what it computed; gives it back the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.before: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.compute(x)
        if self.before is not None:
            y = y + 0.1 * self.before
        self.before = y.detach()
        return y

    def found(self) -> Any:
        return float(self.before.sum())  # type: ignore[union-attr]


class WritesOutside(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros((), device="cuda")]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.compute(x)
        self.kept[0].data.add_(1)
        return y

    def found(self) -> Any:
        return float(self.kept[0])


class Writes(Pure):
    """To its input, where plain PyTorch allows that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.compute(x * 2)
        x.data.mul_(0.5)
        return y * 2

    def found(self) -> Any:
        return 0


# ---- what it draws


class DrawsFromItsGenerator(Pure):
    device = "cuda"

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator(self.device).manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(WIDTH, generator=self.generator, device=self.device)
        return self.compute(x) + noise.cuda()

    def found(self) -> Any:
        return self.generator.get_state().tolist()


class DrawsFromItsGeneratorOfTheCpu(DrawsFromItsGenerator):
    device = "cpu"


class FillsFromItsGenerator(DrawsFromItsGenerator):
    """In place, behind a gate that hides it from the output at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.empty(WIDTH, device="cuda").normal_(generator=self.generator)
        return self.compute(x) + self.gate * noise


class DrawsFromPython(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x) * (1 + random.random())

    def found(self) -> Any:
        return random.random()


class DrawsFromNumpy(Pure):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x) * float(1 + np.random.rand())

    def found(self) -> Any:
        return float(np.random.rand())


class DrawsFromANumpyGenerator(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.generator.random()
        return self.compute(x)

    def found(self) -> Any:
        return self.generator.random()


class DrawsFromAPythonGenerator(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.generator.random()
        return self.compute(x)

    def found(self) -> Any:
        return self.generator.random()


class SeedsItself(Pure):
    """Sets the device's generator, as some do for a mask of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return F.dropout(self.compute(x), 0.3)

    def found(self) -> Any:
        return 0


# ---- what it puts on tensors


class PutsAHook(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.gradients = 0

    def seen(self, _: torch.Tensor) -> None:
        self.gradients += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(self.seen)
        return self.compute(x)

    def found(self) -> Any:
        return self.gradients


class PutsAHookInside(PutsAHook):
    """On a tensor that it makes: PyTorch runs it for the first forward's alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.compute(x)
        y.register_hook(self.seen)
        return y * 2


IMPURE = [
    *(CountsItself, CountsInAGlobal, CountsInADict, counting, CountsOnItsClass),
    *(CountsOnAParent, CountsInAFunction, CountsInADefault, CountsOnAnotherClass),
    *(CountsInAnotherModule, Appends, AppendsALot, ReplacesInALongList),
    *(CountsByItertools, CountsByAGlobalIterator, Cycles, CountsInAGenerator),
    *(CountsInSlots, CountsInAnArray, CountsDeepDown, Remembers),
    *(WritesOutside, Writes),
    *(DrawsFromItsGenerator, DrawsFromItsGeneratorOfTheCpu, FillsFromItsGenerator),
    *(DrawsFromPython, DrawsFromNumpy, DrawsFromANumpyGenerator),
    *(DrawsFromAPythonGenerator, SeedsItself, PutsAHook, PutsAHookInside),
]
MAKERS = {make.__name__: make for make in IMPURE}


@pytest.mark.parametrize("block", MAKERS)
@card
def test_what_a_forward_does_beside_happens_once(block):
    def run() -> list[Any]:
        random.seed(3)
        np.random.seed(3)
        blocks = [MAKERS[block]() for _ in range(2)]
        results = train(chain(Pure(), *blocks, Pure()))
        return [*results, *(made.found() for made in blocks)]

    check_recomputed(run, "Pure")
