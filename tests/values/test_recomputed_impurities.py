"""Modules whose forward does more than compute are found before they run twice.

Each counts, draws, keeps or changes something in a way of its own. What it did must be
what it does where nothing runs again: nothing twice, nothing lost.
"""

from __future__ import annotations

import array
import ctypes
import functools
import itertools
import operator
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recomputing import (
    WIDTH,
    check_known_late_alone,
    check_left_alone,
    check_recomputed,
    compare,
    square,
    train,
)
from support import Simulated
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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


class CountsInBytes(Pure):
    """In an object of C: its bytes alone tell."""

    def __init__(self, counter: Any) -> None:
        super().__init__()
        self.counter = counter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter[0] += 1
        return self.compute(x)

    def found(self) -> Any:
        return self.counter[0]


def counting_in_an_array() -> nn.Module:
    return CountsInBytes(array.array("l", [0]))


def counting_in_a_bytearray() -> nn.Module:
    return CountsInBytes(bytearray(1))


def counting_in_ctypes() -> nn.Module:
    return CountsInBytes((ctypes.c_int * 1)())


class CountsInAPartial(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.bump = functools.partial(operator.setitem, {"count": 0}, "count")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bump(self.bump.args[0]["count"] + 1)
        return self.compute(x)

    def found(self) -> Any:
        return self.bump.args[0]["count"]


IMPURE = [
    *(counting_in_an_array, counting_in_a_bytearray, counting_in_ctypes),
    CountsInAPartial,
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


# ---- what others do to it


class Collects:
    """Counts the calls that it is told of, from a step on."""

    def __init__(self, first_step: int) -> None:
        self.first_step, self.steps, self.calls = first_step, 0, 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1


@pytest.mark.parametrize("step", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("where", ["block", "inside", "all", "tensor"])
@card
def test_a_users_hook_sees_each_call_once(where, step):
    def run() -> list[Any]:
        model = chain(Pure(), Pure(), Pure())
        collects = Collects(step)
        handles = []

        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            if collects.steps == step:
                if where == "block":
                    handles.append(model[1].register_forward_hook(collects))
                elif where == "inside":
                    handles.append(model[1].up.register_forward_pre_hook(collects))
                elif where == "all":
                    register = nn.modules.module.register_module_forward_hook
                    handles.append(register(collects))  # none runs again from now on
                else:
                    handles.append(model[1].up.weight.register_hook(collects))
            collects.steps += 1
            return square(model, x)

        results = train(model, loss)
        for handle in handles:
            handle.remove()
        return [*results, collects.calls]

    compare(run)


class Replaces:
    """A hook of all modules that changes what blocks are given."""

    def __call__(self, module: nn.Module, args: Any) -> Any:
        return (args[0] * 1.5,) if isinstance(module, Pure) else None


@card
def test_a_users_hook_of_all_modules_changes_what_they_are_given():
    def run() -> list[Any]:
        handle = nn.modules.module.register_module_forward_pre_hook(Replaces())
        results = train(chain(Pure(), Pure()))
        handle.remove()
        return results

    compare(run)


@card
def test_a_users_mode_sees_each_operator_once():
    def run() -> list[Any]:
        counts = []

        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            with FlopCounterMode(display=False) as counter:
                value = square(model, x)
                value.backward()
            counts.append(counter.get_total_flops())
            return square(model, x)

        return [*train(chain(Pure(), Pure()), loss), *counts]

    compare(run)


@card
def test_a_default_device_is_no_mode_of_the_users():
    def run() -> list[Any]:
        with torch.device("cuda"):
            return train(chain(Pure(), Pure()))

    check_recomputed(run, "Pure")


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Gate(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            gate = x.sigmoid()
        return self.last(self.block(self.last(x), gate))


class Gate(Pure):
    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.compute(x) + gate.clone()


@card
def test_tensors_of_inference_mode_are_not_kept():
    check_left_alone(lambda: train(Gated()), "Gate", "torch.inference_mode()")


@pytest.mark.parametrize("how", ["in place", "by data"])
@card
def test_a_caller_that_writes_to_the_input_afterwards(how):
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Loose(), Loose(), Loose()])
            self.kept: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                y = block(x * 2)
                given = x * 2
                self.kept.append(given.detach())  # where one writes, one has it
                y = y + block(given)
                if how == "in place":
                    given.mul_(0.5)
                else:
                    given.data.mul_(0.5)
                x = y + given
            return x

    class Loose(Pure):
        """Saves nothing of its input."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.compute(x * 2)[:, :WIDTH] * 0.1

        def compute(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(F.gelu(self.up(x + 1)))

    seen = check_known_late_alone(lambda: train(Caller()))
    assert "Loose: its inputs are written to after it has run" in seen.left_alone


class WritesToADict(Pure):
    def forward(self, x: torch.Tensor, kept: dict[str, Any]) -> torch.Tensor:
        kept["norm"] = x.detach().norm()
        kept["calls"] = kept.get("calls", 0) + 1
        return self.compute(x)


@card
def test_a_block_that_writes_to_a_dict_it_is_given():
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([WritesToADict(), WritesToADict()])
            self.calls: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept: dict[str, Any] = {}
            for block in self.blocks:
                x = block(x, kept) / kept["norm"]
            self.calls.append(kept["calls"])
            return x

    def run() -> list[Any]:
        model = Caller()
        return [*train(model), model.calls]

    check_left_alone(run, "WritesToADict", "it changes its arguments")


class Opens(Pure):
    """Turns to other work at a count that a buffer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.compute(x) * torch.where(self.calls > 5, 0.5, 1.0)


@card
def test_a_block_that_turns_at_a_count_in_a_buffer():
    compare(lambda: train(chain(Pure(), Opens(), Opens())))


class Averages(Pure):
    """Uses a buffer that it has just changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.compute(x - self.mean)


@card
def test_a_block_that_uses_a_buffer_it_has_changed():
    compare(lambda: train(chain(Pure(), Averages(), Averages())))


@card
def test_a_bias_that_is_changed_before_backward():
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        value = square(model, x)
        with torch.no_grad():
            for block in (model[0], model[1]):
                block.down.bias.add_(0.01)
                block.up.bias.add_(0.01)
        return value

    check_known_late_alone(lambda: train(chain(Pure(), Pure()), loss))


class Lazy(dict[str, Any]):
    """Loads what it holds when it is asked, as registries of libraries do."""

    def _load(self, *_: Any) -> Any:
        raise ValueError("it is not there")

    __iter__ = __len__ = values = items = _load  # type: ignore[assignment]


REGISTRY = Lazy()


@card
def test_containers_are_looked_through_without_asking_their_classes():
    class Registered(Pure):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.compute(x) if REGISTRY is not None else x

    check_recomputed(lambda: train(chain(Registered(), Registered())), "Registered")
