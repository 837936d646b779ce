"""Each driver call fails in turn in a step of which a part runs again in backward."""

from __future__ import annotations

import pytest
import test_failures
import torch
from support import Simulated
from test_failures import ERRORS, each_call_fails_once
from torch import nn

CARD = "28MiB,context=0,memory=values,cc=8.6,host=2GiB,link=100MB/s"
recomputing = Simulated(CARD, "reserve:0,host_limit:1GiB,host_ahead:0")
converting = Simulated(
    CARD.replace("28MiB", "47MiB"), "reserve:0,offload:off,recompute:auto"
)


class Block(nn.Sequential):
    """Saves 16 times its input; counts how often it ran in backward."""

    again = 0

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Block.again += torch._C._current_graph_task_id() >= 0
        return super().forward(x)


class Training(test_failures.Training):
    """Some of its blocks run again in backward, and something is sent."""

    rows = 2048

    def __init__(self, device: str) -> None:
        super().__init__(device)
        for _ in range(5 if device == "cuda" else 0):
            self.begin()
            self.step()

    def make_network(self) -> nn.Sequential:
        return nn.Sequential(*(Block() for _ in range(4)))


@pytest.mark.long
@pytest.mark.parametrize("error", ERRORS)
@recomputing
def test_a_step_that_recomputes_survives_the_failure_of_any_call(error):
    import oomph

    Block.again, sent_bytes = 0, oomph.stats()["sent_bytes"]
    outcomes = each_call_fails_once(ERRORS[error], Training)
    assert Block.again > outcomes.total(), (Block.again, outcomes)  # in most steps
    assert oomph.stats()["sent_bytes"] > sent_bytes


class First(Training):
    """Each of its steps is the first, in which calls run again at once."""

    def begin(self) -> None:
        super().begin()
        if self.device == "cuda":
            from oomph import planner

            planner.stop()
            planner.resume()


@pytest.mark.long
@pytest.mark.parametrize("step", ["first", "later"])
@pytest.mark.parametrize("error", ERRORS)
@converting
def test_a_step_without_host_memory_survives_the_failure_of_any_call(error, step):
    import oomph

    Block.again = 0
    kind = First if step == "first" else Training
    outcomes = each_call_fails_once(ERRORS[error], kind)
    assert Block.again > outcomes.total(), (Block.again, outcomes)
    assert oomph.stats()["host_bytes_peak"] == 0
