"""Calls that run again from the first step on, so that no host memory is needed."""

from __future__ import annotations

import pytest
import torch
from support import MIB, Simulated, run
from test_recomputed_plan import WIDTH, Block, Training, hooks_are_on, tick
from torch import nn

CARD = "512MiB,context=0,gpu=rtx4090"
no_host = Simulated(CARD, "reserve:0,offload:off,recompute:auto")
off = Simulated(CARD, "reserve:0,offload:off")
one_memory = Simulated(CARD + ",integrated=yes", "reserve:0,recompute:always")
small_host = Simulated(CARD, "reserve:0,host_limit:96MiB,recompute:always")
default = Simulated(CARD, "reserve:0,host_limit:96MiB")
KEPT = 24  # MiB of a state: eight blocks save four of them each, 768 MiB


@off
def test_without_it_the_first_step_runs_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError):
        Training().steps(1, mib=KEPT)


@no_host
def test_a_program_goes_on_without_host_memory():
    import oomph

    steps = Training().steps(8, mib=KEPT)
    # As always, to see whether it may, to keep its inputs alone; and in backward.
    # In the second step, too: it has gradients and optimizers' state from its start.
    assert [step["again"] for step in steps[:2]] == [3 * 8] * 2
    assert all(0 < step["again"] < 8 for step in steps[2:])
    assert all(step["rescues"] == 0 for step in steps)
    stats = oomph.stats()
    assert stats["host_bytes"] == 0 and stats["sent_bytes"] == 0
    plan = oomph.planner.explain()[0]
    assert plan["recomputed_calls"] > 0
    assert plan["step_sent_bytes"] == plan["step_host_used_bytes"] == 0


@one_memory
def test_a_program_goes_on_where_the_gpu_has_no_memory_but_the_cpus():
    import oomph

    steps = Training().steps(4, mib=KEPT)
    assert [step["again"] > 0 for step in steps] == [True] * 4
    stats = oomph.stats()
    assert stats["host_bytes"] == 0 and stats["sent_bytes"] == 0


@no_host
def test_what_is_needed_is_what_a_step_that_keeps_all_would_need():
    import oomph

    Training().steps(3, mib=KEPT)
    # Eight blocks save four states each, but for what the device has.
    missing = 8 * 4 * KEPT - 512
    found = oomph.planner.explain()[0]["missing_bytes"] / MIB
    assert missing < found < missing + 3 * KEPT


@no_host
def test_a_program_that_fits_keeps_all_from_the_third_step_on():
    steps = Training().steps(6, mib=6)
    assert steps[0]["again"] > 0
    assert all(step["again"] == 0 for step in steps[2:])


@no_host
def test_a_step_that_is_larger_than_all_before_is_no_error():
    training = Training()
    assert training.steps(3, mib=6)[-1]["again"] == 0
    larger = training.steps(4, mib=KEPT)
    assert larger[0]["again"] == 3 * 8
    assert all(0 < step["again"] < 8 for step in larger[1:])
    assert training.steps(12, mib=6)[-1]["again"] == 0


@no_host
def test_modules_that_were_not_seen_before_are_no_error():
    Training().steps(3, mib=KEPT)
    steps = Training(10).steps(3, mib=KEPT)
    assert steps[0]["again"] == 3 * 10
    assert all(0 < step["again"] < 10 for step in steps[2:])


@no_host
def test_a_module_in_the_place_in_memory_of_one_that_is_gone_is_another():
    from oomph import planner

    training = Training()
    training.steps(3, mib=KEPT)
    others = Training(10)
    # What is known of the first model, under the address of another: as if that had
    # been made where the first one was.
    follower = planner._planner.follower
    known = {(id(others.model), 0): root for root in follower._roots.values()}
    assert len(known) == 1
    follower._roots = known
    del training
    assert others.steps(1, mib=KEPT)[0]["again"] == 3 * 10


def test_a_forward_on_the_cpu_does_not_begin_cuda():
    result = run(
        """
        import torch
        model = torch.nn.Linear(8, 8)
        model(torch.ones(2, 8)).sum().backward()
        print(torch.cuda.is_initialized())
        """,
        card=CARD,
        conf="offload:off,recompute:auto",
    )
    assert result.out.split() == ["False"], result.err


@pytest.mark.parametrize(
    ("conf", "is_there"),
    [
        ("offload:on-oom", False),
        ("offload:off", False),
        ("offload:off,recompute:auto", True),
    ],
)
def test_the_planner_is_there_from_the_start_only_where_it_plans(conf, is_there):
    code = """
    import sys, torch
    print("oomph.planner" in sys.modules)
    """
    result = run(code, card=CARD, conf=conf)
    assert result.out.split() == [str(is_there)], result.err


class Deep(nn.Module):
    """Calls within calls: two blocks, and something beside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sin()


@no_host
def test_of_calls_within_calls_those_around_run_again_where_that_frees_more():
    training = Training()
    training.model = nn.Sequential(*(Deep() for _ in range(8)))
    x = torch.zeros(20 * MIB // 4 // WIDTH, WIDTH, device="cuda", requires_grad=True)
    for _ in range(4):
        before = tick.cache_info().misses
        training.model(x).sum().backward()
        training.optimizer.step()
        again = tick.cache_info().misses - before - 16
    assert 0 < again <= 16


@no_host
def test_forwards_that_accumulate_gradients_are_all_converted():
    training = Training()
    x = torch.zeros(KEPT * MIB // 4 // WIDTH, WIDTH, device="cuda", requires_grad=True)
    for _ in range(4):
        for _ in range(3):
            training.model(x).sum().backward()
        training.optimizer.step()


class Varying(nn.Module):
    """Saves nothing but what it returns where there is much, else something more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() if x.nbytes > 20 * MIB else x.sin().exp().tanh()


@no_host
def test_forwards_of_which_each_tries_other_calls_are_no_error():
    training = Training()
    training.model = nn.Sequential(Block(), *(Varying() for _ in range(4)))
    for _ in range(5):
        for mib in (24, 8):
            rows = mib * MIB // 4 // WIDTH
            x = torch.zeros(rows, WIDTH, device="cuda", requires_grad=True)
            training.model(x).sum().backward()
        training.optimizer.step()


@no_host
def test_forwards_whose_graph_nobody_uses_hold_nothing():
    training = Training()
    x = torch.zeros(KEPT * MIB // 4 // WIDTH, WIDTH, device="cuda", requires_grad=True)
    for _ in range(40):
        used = torch.cuda.memory_allocated()
        training.model(x)
        assert torch.cuda.memory_allocated() == used


@no_host
def test_where_recomputing_is_not_enough_the_error_comes():
    # What the calls are given is kept: eight states and more.
    with pytest.raises(torch.OutOfMemoryError):
        Training().steps(1, mib=60)
    steps = Training().steps(4, mib=KEPT)  # and afterwards it goes on
    # A step that was cut short is no example of those to come.
    assert [step["again"] for step in steps[:2]] == [3 * 8, 3 * 8]
    assert all(0 < step["again"] < 8 for step in steps[2:])


@no_host
def test_nothing_runs_again_while_a_batch_finder_runs():
    import oomph

    with oomph.batch_finder():
        assert Training().steps(2, mib=6)[0]["again"] == 0
        with pytest.raises(torch.OutOfMemoryError):
            Training().steps(1, mib=KEPT)
    assert Training().steps(1, mib=KEPT)[0]["again"] == 3 * 8
    assert hooks_are_on()


@default
def test_little_host_memory_is_not_enough_for_a_first_step_that_keeps_all():
    with pytest.raises(torch.OutOfMemoryError):
        Training().steps(1, mib=KEPT)


@small_host
def test_little_host_memory_is_enough_where_the_first_step_recomputes():
    steps = Training().steps(6, mib=KEPT)
    assert steps[0]["again"] == 3 * 8
    assert all(step["rescues"] == 0 for step in steps)


@pytest.mark.parametrize(
    ("given", "stands_for"),
    [
        ({}, "auto"),
        ({"recompute": "auto"}, "auto"),
        ({"recompute": "always"}, "always"),
        ({"offload": "always"}, "auto"),
        ({"offload": "off"}, "off"),
        ({"offload": "off", "recompute": "auto"}, "always"),
        ({"offload": "off", "recompute": "off"}, "off"),
    ],
)
def test_without_host_memory_calls_run_again_only_if_that_is_asked_for(
    given, stands_for
):
    from oomph import settings

    assert settings.complete(given)["recompute"] == stands_for
