"""Which calls run again in backward as a program grows, shrinks and changes."""

from __future__ import annotations

import pytest
import torch
from support import MIB, Simulated
from torch import nn

CARD = "512MiB,context=0,link=1GB/s"
CONF = "reserve:0,host_limit:8GiB"
slow_link = Simulated(CARD, CONF)
never = Simulated(CARD, f"{CONF},recompute:off")
WIDTH = 1024


class Block(nn.Module):
    """Saves some times the bytes of its input, and is cheap to repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x * self.scale).sin().exp().tanh()


class Training:
    """A row of blocks; counts their forwards."""

    def __init__(self, blocks: int = 8) -> None:
        self.model = nn.Sequential(*(Block() for _ in range(blocks)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.forwards = 0
        forward = Block.forward

        def counted(block: Block, x: torch.Tensor) -> torch.Tensor:
            self.forwards += 1
            return forward(block, x)

        for block in self.model:
            block.forward = counted.__get__(block)

    def step(self, rows: int, requires_grad: bool = True) -> dict[str, int]:
        """Takes a step; gives its rescues and the forwards that ran again."""
        import oomph

        before, self.forwards = oomph.stats()["rescues"], 0
        x = torch.zeros(rows, WIDTH, device="cuda", requires_grad=requires_grad)
        self.model(x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        rescues = oomph.stats()["rescues"] - before
        return {"rescues": rescues, "again": self.forwards - len(self.model)}

    def steps(self, count: int, mib: int) -> list[dict[str, int]]:
        """Steps in which a state has so many MiB."""
        return [self.step(mib * MIB // 4 // WIDTH) for _ in range(count)]


@pytest.fixture(autouse=True)
def forget():
    """The next test begins as a program does."""
    yield
    import sys

    if "remote" in sys.modules:
        import oomph

        oomph.planner.stop()
        torch.cuda.empty_cache()


def hooks_are_on() -> bool:
    from oomph.offload import activations

    return bool(activations._handles)


def kept(steps: list[dict[str, int]]) -> bool:
    """Whether nothing ran again, and nothing was short of memory."""
    return all(step == {"rescues": 0, "again": 0} for step in steps)


@slow_link
def test_calls_run_again_from_the_fourth_step_on():
    steps = Training().steps(6, mib=20)
    assert steps[0]["rescues"] > 0
    assert steps[1] == {"rescues": 0, "again": 0}
    assert steps[2] == {"rescues": 0, "again": 8}  # each once, to see whether it may
    assert all(s["rescues"] == 0 and 0 < s["again"] < 8 for s in steps[3:])


@slow_link
def test_when_steps_shrink_all_is_kept_again_and_the_hooks_are_off():
    training = Training()
    assert training.steps(5, mib=20)[-1]["again"] > 0
    steps = training.steps(7, mib=10)
    assert all(step["rescues"] == 0 for step in steps)
    assert kept(steps[5:])
    assert not hooks_are_on()


@slow_link
def test_when_steps_grow_more_runs_again_and_nothing_is_rescued_after_two():
    training = Training()
    before = training.steps(5, mib=20)[-1]["again"]
    steps = training.steps(6, mib=26)
    assert all(step["rescues"] == 0 and step["again"] > before for step in steps[2:])


@slow_link
def test_steps_that_grow_again_after_all_was_kept_are_planned_anew():
    training = Training()
    training.steps(5, mib=20)
    assert kept(training.steps(7, mib=10)[5:])
    steps = training.steps(5, mib=20)
    assert all(s["rescues"] == 0 and s["again"] > 0 for s in steps[2:])


@slow_link
def test_a_part_that_is_thawed_is_planned_for():
    training = Training()
    frozen = training.model[:4].requires_grad_(False)
    rows = 30 * MIB // 4 // WIDTH

    def steps(count: int) -> list[dict[str, int]]:
        return [training.step(rows, requires_grad=False) for _ in range(count)]

    before = steps(6)
    assert all(s["rescues"] == 0 and 0 < s["again"] <= 4 for s in before[3:])
    frozen.requires_grad_(True)
    after = steps(6)
    assert all(s["rescues"] == 0 and s["again"] > 0 for s in after[2:])


@never
def test_with_recompute_off_no_forward_runs_twice_and_nobody_follows_calls():
    import oomph
    from oomph import planner

    training = Training()
    for i in range(8):
        step = training.steps(1, mib=20)[0]
        assert step["again"] == 0
        assert i == 0 or step["rescues"] == 0
        assert planner._planner.follower is None
    assert oomph.planner.explain()[0]["step_sent_bytes"] > 100 * MIB
