"""Which calls run again in backward as a program grows, shrinks and changes."""

from __future__ import annotations

import functools
import weakref

import pytest
import torch
from support import MIB, Simulated
from torch import nn

CARD = "512MiB,context=0,link=1GB/s"
CONF = "reserve:0,host_limit:8GiB"
slow_link = Simulated(CARD, CONF)
never = Simulated(CARD, f"{CONF},recompute:off")
fast_link = Simulated("560MiB,gpu=rtx4090,host=8GiB,context=0", CONF)
small_card = Simulated("768MiB,gpu=rtx4090,host=8GiB,context=0", CONF)
sends_alone = Simulated(
    "768MiB,gpu=rtx4090,host=8GiB,context=0", f"{CONF},recompute:off"
)
WIDTH = 1024


@functools.lru_cache(maxsize=1)
def tick(_: object) -> None:
    """Counts its calls where no look at Python's state sees it."""


class Block(nn.Module):
    """Saves some times the bytes of its input, and is cheap to repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tick(object())
        return x + (x * self.scale).sin().exp().tanh()


class Narrow(Block):
    """Works in half precision; its input in single precision is saved nowhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tick(object())
        return x + (x.half() * self.scale.half()).sin().exp().tanh().sin().float()


class Training:
    """A row of blocks."""

    def __init__(self, blocks: int = 8, kind: type[Block] = Block) -> None:
        self.model = nn.Sequential(*(kind() for _ in range(blocks)))
        self.count = blocks
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def step(self, rows: int, requires_grad: bool = True) -> dict[str, int]:
        """Takes a step; gives its rescues and the forwards that ran again."""
        import oomph

        before, forwards = oomph.stats()["rescues"], tick.cache_info().misses
        x = torch.zeros(rows, WIDTH, device="cuda", requires_grad=requires_grad)
        self.model(x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        rescues = oomph.stats()["rescues"] - before
        forwards = tick.cache_info().misses - forwards
        return {"rescues": rescues, "again": forwards - self.count}

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
def test_calls_run_again_while_leaks_are_looked_for():
    from oomph import leaks

    with leaks.watch(action="count"):
        steps = Training().steps(6, mib=20)
    assert all(s["rescues"] == 0 and 0 < s["again"] < 8 for s in steps[3:])


@slow_link
def test_where_a_program_has_hooks_on_all_modules_no_call_runs_again():
    calls = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: calls.append(type(module))
    )
    steps = Training(8).steps(6, mib=20)
    handle.remove()
    assert [step["again"] for step in steps] == [0] * 6
    assert calls.count(Block) == 6 * 8


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("mib", [20, 24, 28])
@slow_link
def test_what_is_needed_when_calls_run_again_is_predicted(is_narrow, mib):
    steps = Training(12, Narrow if is_narrow else Block).steps(12, mib)
    assert steps[3]["again"] > 0
    assert [step["rescues"] for step in steps[3:]] == [0] * 9


@slow_link
def test_when_steps_shrink_all_is_kept_again_and_the_hooks_are_off():
    training = Training()
    assert training.steps(5, mib=20)[-1]["again"] > 0
    steps = training.steps(7, mib=10)
    assert all(step["rescues"] == 0 for step in steps)
    assert kept(steps[5:])
    assert not hooks_are_on()


@pytest.mark.parametrize("is_narrow", [False, True])
@slow_link
def test_what_steps_save_under_a_plan_tells_their_size(is_narrow):
    from oomph.offload.blocks import Blocks

    adapt, sizes = Blocks._adapt, []

    def note_size(self, *arguments):
        changed = adapt(self, *arguments)
        sizes.extend([*self._sizes][-1:])
        return changed

    Blocks._adapt = note_size
    try:
        training = Training(12, Narrow if is_narrow else Block)
        training.steps(7, mib=20)
        count = len(sizes)
        training.steps(3, mib=10)
    finally:
        Blocks._adapt = adapt
    assert sizes[:count] == pytest.approx([1.0] * count, rel=0.02)
    assert sizes[count:] == pytest.approx([0.5] * 3, rel=0.02)


@slow_link
def test_steps_that_need_less_than_expected_and_save_as_much_have_not_shrunk():
    from oomph.offload.blocks import Blocks

    choose = Blocks._choose

    def expect_more(self, *arguments):
        """As where graphs outlive their backward: that of the record frees less."""
        changed = choose(self, *arguments)
        self._need_bytes *= 2
        return changed

    Blocks._choose = expect_more
    try:
        steps = Training().steps(14, mib=20)
    finally:
        Blocks._choose = choose
    assert all(step["again"] > 0 for step in steps[3:])


@slow_link
def test_when_steps_grow_more_runs_again_and_nothing_is_rescued_after_two():
    training = Training()
    before = training.steps(5, mib=20)[-1]["again"]
    steps = training.steps(6, mib=26)
    assert all(step["rescues"] == 0 and step["again"] > before for step in steps[2:])


@slow_link
def test_where_every_other_step_is_short_it_is_these_that_are_planned_for():
    training = Training()
    steps = [training.steps(1, mib)[0] for mib in (20, 8, 20, 8, 20, 8, 20, 8, 20)]
    assert all(step["rescues"] == 0 for step in steps[1:])
    assert all(step["again"] > 0 for step in steps[-4:])


@slow_link
def test_steps_that_grow_again_after_all_was_kept_are_planned_anew():
    training = Training()
    training.steps(5, mib=20)
    # It takes more steps after shortages that came back, as in the tests before.
    assert kept(training.steps(16, mib=10)[14:])
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


class SelfAware(Block):
    """Computes otherwise where both inputs are one tensor, as attention does."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x is y else y * super().forward(x[:1])


class Pairs(nn.Module):
    """Gives each of its blocks the same tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(SelfAware() for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, x)
        return x


@slow_link
def test_a_tensor_that_was_given_twice_is_given_twice_again():
    import oomph

    training = Training()
    training.model = Pairs()
    training.steps(6, mib=20)
    assert oomph.planner.explain()[0]["recomputed_calls"] > 0


def test_what_will_run_again_holds_none_of_its_inputs_itself():
    from oomph.recompute.rerun import Rerun

    given = torch.ones(4, requires_grad=True) * 2
    held = weakref.ref(given)
    with torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: None):
        rerun = Rerun(nn.ReLU(), (given, [given]), {"by_name": given})
        output = torch.relu(given)
        rerun.end()
    del given
    assert held() is None
    del output


@pytest.mark.parametrize("calls", [0, 1, 3])
@slow_link
def test_calls_run_again_in_whichever_turn_is_the_largest(calls):
    import oomph

    training, other = Training(), Block()
    for _ in range(6):
        small = torch.zeros(8, WIDTH, device="cuda", requires_grad=True)
        for block in training.model[:calls] if calls else [other]:
            small = block(small)
        small.sum().backward()
        training.steps(1, mib=20)
    assert oomph.planner.explain()[0]["recomputed_calls"] > 0


@fast_link
def test_the_first_steps_under_a_plan_are_no_shorter_of_memory_than_it_says():
    import oomph

    layers = (nn.TransformerEncoderLayer(384, 8, 1536) for _ in range(12))
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    used = []
    for _ in range(12):
        model(torch.randn(128, 24, 384, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        used.append(oomph.stats()["step_host_used_bytes"])
    assert oomph.planner.explain()[0]["recomputed_calls"] > 0
    # The 4th is the first under the plan, and what it begins with is from before.
    assert max(used[4:]) <= 4 * MIB, used


@fast_link
def test_what_a_step_takes_is_foreseen_though_its_loss_is_larger_than_the_device():
    import oomph

    layers = [nn.TransformerEncoderLayer(384, 8, 1536) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(384, 32768)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    target = torch.zeros(128 * 24, dtype=torch.long, device="cuda")
    for _ in range(10):
        x = torch.randn(128, 24, 384, device="cuda")
        nn.functional.cross_entropy(model(x).flatten(0, 1), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    plan = oomph.planner.explain()[0]
    assert plan["recomputed_calls"] > 0, plan["text"]
    assert 0.9 < plan["expected_step_ms"] / plan["step_ms"] < 1.1, plan["text"]


@small_card
def test_trials_find_room_where_parameters_and_state_fill_the_card():
    import oomph

    layers = (nn.TransformerEncoderLayer(768, 12, 3072) for _ in range(8))
    model = nn.Sequential(*layers).cuda()  # 216 MiB, and twice as much of state
    optimizer = torch.optim.AdamW(model.parameters())
    used, rescues = [], []
    for _ in range(6):
        model(torch.randn(64, 64, 768, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        used.append(oomph.stats()["step_host_used_bytes"])
        rescues.append(oomph.stats()["rescues"])
    plan = oomph.planner.explain()[0]
    assert plan["recomputed_calls"] > 0, plan["text"]
    assert "no room" not in plan["text"]
    # In the third step calls are tried, and nothing falls back to the host.
    assert rescues[2] == rescues[1] and max(used[4:]) <= 4 * MIB, used


@sends_alone
def test_what_was_sent_comes_back_ahead_of_need_beside_state_on_the_host():
    import oomph

    layers = (nn.TransformerEncoderLayer(768, 12, 3072) for _ in range(8))
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        model(torch.randn(96, 64, 768, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    plan = oomph.planner.explain()[0]
    assert plan["state_host_bytes"] > 256 * MIB, plan["text"]
    # State on the host takes no room on the device: 40 % if that is forgotten.
    assert plan["step_waited_ms"] < 0.34 * plan["step_ms"], plan["text"]
