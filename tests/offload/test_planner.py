"""The planner makes room ahead of need: as much as is missing, as long as it is."""

from __future__ import annotations

import gc
import math
from unittest import mock

import pytest
import torch
from oomph.base.sizes import format_size
from support import MIB, Simulated, run
from torch import nn

# Shapes alone: a step is quick, whatever its size.
card = Simulated("2GiB,context=0", "reserve:0,host_limit:16GiB")
reserved = Simulated("2GiB,context=0", "reserve:64MiB,host_limit:16GiB")
LAYER_MIB = 64
HUGE_BYTES = 3 << 30  # more than the card has


class Layer(nn.Module):
    """Saves one tensor of LAYER_MIB for a batch of 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2


class Loss(nn.Module):
    """Of the first thing that a model gives; with it the rest is dropped."""

    def forward(self, given: tuple[torch.Tensor, list[torch.Tensor]]) -> torch.Tensor:
        return given[0].exp().sin()


class Training:
    """A chain of layers over a batch, with one small parameter to be optimized."""

    def __init__(self, layers: int) -> None:
        self.scale = nn.Parameter(torch.ones(1, device="cuda"))
        self.model = nn.Sequential(*(Layer() for _ in range(layers)))
        self.optimizer = torch.optim.SGD([self.scale])

    def step(self, batch: int = 1, accumulate: int = 1, closure: str = "") -> dict:
        """Takes a step; gives its rescues and the bytes that it had away.

        Args:
            batch: Its size.
            accumulate: How many batches.
            closure: How the optimizer is given a function that computes the loss;
                empty: it is computed before.
        """
        import oomph

        def compute() -> torch.Tensor:
            for _ in range(accumulate):
                x = torch.empty(batch * LAYER_MIB * MIB // 4, device="cuda")
                loss = self.model(x * self.scale).sum()
                loss.backward()
            return loss

        before = oomph.stats()["rescues"]
        if closure == "by place":
            self.optimizer.step(compute)
        elif closure == "by name":
            self.optimizer.step(closure=compute)
        else:
            compute()
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {"rescues": oomph.stats()["rescues"] - before, **reported()}


def reported() -> dict:
    import sys

    planner = sys.modules.get("oomph.planner")
    found = planner.explain() if planner else {}
    return found.get(0, {"missing_bytes": 0, "offloaded_bytes": 0, "text": ""})


def hooks_are_on() -> bool:
    return bool(nn.modules.module._global_forward_pre_hooks)


@pytest.mark.parametrize("needed", [1.2, 1.5, 2.0])
@card
def test_nothing_is_rescued_from_the_third_step_on(needed):
    training = Training(round(needed * 2048 / LAYER_MIB) - 3)
    steps = [training.step() for _ in range(6)]
    assert steps[0]["rescues"] > 0
    assert [step["rescues"] for step in steps[2:]] == [0] * 4
    for step in steps[2:]:
        assert step["missing_bytes"] > 0
        assert step["offloaded_bytes"] <= 1.15 * step["missing_bytes"]
    torch.cuda.synchronize()


@pytest.mark.parametrize("closure", ["by place", "by name"])
@pytest.mark.parametrize("optimizer", ["SGD", "LBFGS"])
@card
def test_a_loss_that_the_optimizer_has_computed_is_planned_for_as_well(
    optimizer, closure
):
    training = Training(45)
    kind = getattr(torch.optim, optimizer)
    training.optimizer = kind([training.scale])
    steps = [training.step(closure=closure) for _ in range(6)]
    assert steps[0]["rescues"] > 0
    assert [step["rescues"] for step in steps[2:]] == [0] * 4
    assert all(step["missing_bytes"] > 800 * MIB for step in steps[2:])
    torch.cuda.synchronize()


@pytest.mark.parametrize("judgements", [1, 3])
@card
def test_two_models_that_are_trained_by_turns_are_planned_for_together(judgements):
    import oomph

    maker, judge = Training(20), Training(30)
    before = oomph.stats()
    rescues = []
    for _ in range(10):
        for _ in range(judgements):
            judge.step()
        maker.step()
        rescues.append(oomph.stats()["rescues"] - before["rescues"] - sum(rescues))
    assert rescues[0] > 0
    assert rescues[4:] == [0] * 6
    steps = oomph.stats()["steps"] - before["steps"]
    assert 9 <= steps <= 10 + judgements  # the first before the maker is known


@card
def test_optimizers_that_step_in_backward_end_one_step_with_it():
    import oomph

    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24))).cuda()
    optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(update) for p in optimizers]
    before = oomph.stats()
    rescues = []
    for _ in range(8):
        x = torch.empty(24 << 10, 1024, device="cuda")  # a layer saves 96 MiB of it
        model(x).sum().backward()
        rescues.append(oomph.stats()["rescues"] - before["rescues"] - sum(rescues))
    assert oomph.stats()["steps"] - before["steps"] == 8
    assert rescues[0] > 0
    assert rescues[3:] == [0] * 5
    assert reported()["missing_bytes"] > 256 * MIB
    for hook in hooks:  # autograd holds them, and Python does not see the circle
        hook.remove()
    torch.cuda.synchronize()


@card
def test_where_all_fits_there_are_no_hooks():
    training = Training(8)
    for _ in range(3):
        assert training.step()["rescues"] == 0
    assert not hooks_are_on()


@card
def test_the_hooks_leave_when_the_pressure_leaves():
    training = Training(40)
    for _ in range(3):
        training.step()
    assert hooks_are_on()
    training.model = training.model[:8]
    for _ in range(9):
        training.step()
    assert not hooks_are_on()
    assert reported()["text"].endswith("everything fits: nothing is offloaded.")
    training.model = nn.Sequential(*(Layer() for _ in range(40)))
    training.step()
    assert [training.step()["rescues"] for _ in range(3)][1:] == [0, 0]
    assert hooks_are_on()


@card
def test_each_batch_of_an_accumulated_step_makes_room():
    training = Training(40)
    for _ in range(2):
        training.step(accumulate=3)
    step = training.step(accumulate=3)
    assert step["rescues"] == 0
    assert step["offloaded_bytes"] <= 1.15 * step["missing_bytes"]


@card
def test_evaluation_between_steps_does_not_disturb():
    training = Training(40)
    for _ in range(2):
        training.step()
    for _ in range(3):
        with torch.no_grad():
            training.model(torch.empty(LAYER_MIB * MIB // 4, device="cuda"))
        assert training.step()["rescues"] == 0


@card
def test_what_somebody_holds_is_not_sent_twice():
    import oomph

    training = Training(40)
    held = []
    training.model[0].register_forward_hook(lambda *a: held.append(a[2]))
    for _ in range(3):
        held.clear()
        step = training.step()
    assert step["rescues"] == 0
    assert step["offloaded_bytes"] <= 1.2 * step["missing_bytes"]
    held.clear()
    gc.collect()
    assert oomph._C.stats(0)["buffer_bytes"] == 0


class Caching(nn.Module):
    """Gives what some of its layers saved as well, as models give keys and values."""

    def __init__(self, layers: int, kept: range) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.kept = kept

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        cache = []
        for i, layer in enumerate(self.layers):
            if i in self.kept:
                cache.append(x.detach())
            x = layer(x)
        return x, cache


@card
def test_what_is_held_until_backward_begins_is_not_sent_again():
    model = Caching(46, range(2, 14, 2))
    training = Training(0)
    training.model = nn.Sequential(model, Loss())
    steps = [training.step() for _ in range(8)]
    assert steps[0]["rescues"] > 0
    assert [step["rescues"] for step in steps[3:]] == [0] * 5
    for step in steps[3:]:
        assert step["missing_bytes"] > 900 * MIB
        assert step["offloaded_bytes"] <= 1.1 * step["missing_bytes"]
    torch.cuda.synchronize()


@card
def test_what_lies_on_the_host_already_is_not_sent_there():
    training = Training(2)
    for _ in range(3):
        step = training.step(batch=40)  # no tensor of it fits the card
    assert step["missing_bytes"] > 0
    assert step["step_sent_bytes"] == 0


def huge_block() -> torch.Tensor:
    return torch.empty(HUGE_BYTES, dtype=torch.uint8, device="cuda")


def step_beside_a_huge_block() -> dict:
    """The fourth of some alike: such a block comes in each, and is gone after it."""
    training = Training(2)
    for _ in range(4):
        huge = huge_block()
        step = training.step()
        del huge
    return step


@card
def test_a_block_that_no_card_could_hold_is_put_on_the_host_at_once():
    import oomph

    step = step_beside_a_huge_block()
    before = oomph.stats()["host_predicted"]
    assert step["rescues"] == 0
    huge = huge_block()
    assert oomph.stats()["host_predicted"] == before + 1
    del huge


@card
def test_what_kernels_used_on_the_host_is_explained_where_nothing_was_rescued():
    step = step_beside_a_huge_block()
    assert step["rescues"] == 0
    # What the card cannot hold of it, and room for the rest.
    assert HUGE_BYTES / 3 < step["step_host_used_bytes"] < HUGE_BYTES * 2 / 3
    used = format_size(step["step_host_used_bytes"])
    assert f"kernels used {used} on host pages" in step["text"]


@reserved
def test_of_a_block_that_fell_back_no_more_lies_on_the_host_than_did():
    import oomph

    kept = torch.empty(1400 * MIB, dtype=torch.uint8, device="cuda")
    layer = torch.nn.Linear(64, 64, device="cuda")
    used, rescues = [], []
    for _ in range(6):
        loss = layer(torch.ones(4, 64, device="cuda")).sum()
        large = torch.zeros(700 * MIB, dtype=torch.uint8, device="cuda")
        loss.backward()
        del large
        oomph.step()
        used.append(oomph.stats()["step_host_used_bytes"])
        rescues.append(oomph.stats()["rescues"])
    assert used[1] > 64 * MIB
    assert rescues[2:] == [rescues[1]] * 4 and used[2:] == [used[1]] * 4, used
    del kept


@card
def test_blocks_are_predicted_after_any_number_of_steps_that_fell_short():
    import oomph

    training = Training(2)

    def step_beside(size_bytes: int) -> int:
        """Takes a step with a block that no card could hold; gives its rescues."""
        before = oomph.stats()["rescues"]
        with torch.no_grad():
            huge = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        training.step()
        del huge
        return oomph.stats()["rescues"] - before

    for i in range(40):  # of another size each time, so that none is predicted
        assert step_beside((3 << 30) + i * MIB) > 0
    for _ in range(2):
        step_beside(4 << 30)
    assert [step_beside(4 << 30) for _ in range(2)] == [0, 0]


@card
def test_steps_are_explained_in_words_and_as_data():
    training = Training(40)
    for _ in range(3):
        step = training.step()
    assert step["text"].startswith("GPU 0: the last step needed 2.")
    assert "went to the host and came back" in step["text"]
    assert step["sent_bytes"] >= step["fetched_bytes"] > 0
    assert step["waited_ms"] >= 0


class Wide(nn.Module):
    """Parameters alone: one matrix, of which a step saves next to nothing."""

    def __init__(self, size_mib: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_mib, MIB // 4, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight[:, :1] * x).sum()


class Optimizing:
    """Training in which the optimizer needs the most memory."""

    def __init__(self, size_mib: int, **options: object) -> None:
        self.model = Wide(size_mib)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **options)

    def step(self) -> dict:
        import oomph

        before = oomph.stats()["rescues"]
        self.model(torch.ones(1, device="cuda")).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"rescues": oomph.stats()["rescues"] - before, **reported()}


@card
def test_an_optimizer_that_fits_only_in_pieces_works_so():
    # Parameters, gradients and state take 1.8 GiB, what AdamW needs beside 0.9.
    training = Optimizing(460)
    steps = [training.step() for _ in range(5)]
    assert steps[0]["rescues"] > 0
    assert [step["rescues"] for step in steps[2:]] == [0] * 3
    assert "the optimizer worked piece by piece" in steps[-1]["text"]
    assert steps[-1]["unreached_bytes"] == 0


@card
def test_an_optimizer_on_the_cpu_is_not_said_to_work_in_pieces():
    held = [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(9)]
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.AdamW([weight])
    for _ in range(3):
        weight.cuda().sum().backward()
        optimizer.step()
    assert "piece by piece" not in reported()["text"]
    del held


@card
def test_what_each_optimizer_of_a_turn_needs_for_itself_is_told_apart():
    from oomph import planner

    def trained(mib: int) -> torch.optim.Optimizer:
        parameter = nn.Parameter(torch.zeros(mib * MIB // 4, device="cuda"))
        parameter.grad = torch.zeros_like(parameter)
        return torch.optim.Adam([parameter], foreach=True)

    planner.start()
    assert planner._planner is not None
    plan = planner._planner.device(0)
    small, large = trained(4), trained(64)
    for _ in range(3):
        small.step()  # ends an iteration
        kept = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
        large.step()
        del kept
    small.step()
    assert 64 * MIB <= plan.last.temporary_bytes < 80 * MIB


@card
def test_state_on_the_host_is_brought_to_the_device_for_its_turn():
    import oomph

    training = Optimizing(640)
    steps = [training.step() for _ in range(6)]
    assert [step["rescues"] for step in steps[2:]] == [0] * 4
    last = steps[-1]
    state = training.optimizer.state[training.model.weight]
    on_host = [t for t in (state["exp_avg"], state["exp_avg_sq"]) if hosted(t)]
    on_host_bytes = sum(oomph.residency(t).host_bytes for t in on_host)
    assert last["state_host_bytes"] == on_host_bytes > 0
    # Each byte in and out once, not as often as the optimizer passes over it.
    assert last["step_fetched_bytes"] == last["step_sent_bytes"]
    assert last["step_fetched_bytes"] == sum(t.nbytes for t in on_host)
    assert last["step_host_used_bytes"] == 0  # kernels used the copies
    assert "is on the host and came to the device piece by piece" in last["text"]
    del training, state, on_host
    assert oomph._C.stats(0)["allocated_bytes.all.current"] == 0


@card
def test_state_of_which_a_part_fell_back_is_not_taken_to_be_away():
    import oomph
    from oomph.offload import idle

    weight = nn.Parameter(torch.zeros(64 * MIB, device="cuda"))  # 256 MiB
    weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.Adam([weight], fused=True)
    kept = torch.empty(1152 * MIB, dtype=torch.uint8, device="cuda")
    optimizer.step()
    idle.note(optimizer)
    state = [optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq")]
    parts = [oomph.residency(tensor) for tensor in state]
    in_part = [p for p in parts if p.host_bytes > 0 and p.device_bytes > 0]
    assert len(in_part) == 1, parts
    size_bytes = sum(tensor.nbytes for tensor in state)
    division = idle.divide_state(0, size_bytes)
    assert set(division.leaves) >= {tensor.data_ptr() for tensor in state}
    oomph._C.mark_idle(division.leaves)
    oomph._C.move(0, oomph._C.TIER_HOST, division.leaves, True)
    assert sum(oomph.residency(tensor).host_bytes for tensor in state) >= size_bytes
    assert idle.divide_state(0, size_bytes).leaves == []
    del kept


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [(0, ""), (1, "d"), (16, "d"), (20, "cd"), (64, "b"), (80, "bd"), (999, "abcd")],
)
def test_little_more_state_is_chosen_than_is_wanted(wanted, chosen):
    from oomph.offload import idle

    sizes = {ord("a"): 64, ord("b"): 64, ord("c"): 16, ord("d"): 16}
    with mock.patch.object(idle, "is_hosted", {ord("b"), ord("d")}.__contains__):
        found = idle._of_size(sizes, wanted)
    assert {*map(chr, found)} == {*chosen}


@card
def test_state_that_finds_no_room_for_its_turn_is_used_on_the_host():
    from oomph.offload.staging import Pipeline

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    training = Optimizing(640)
    for _ in range(8):
        training.step()
    take, Pipeline._take_buffer = Pipeline._take_buffer, refuse
    try:
        step = training.step()
    finally:
        Pipeline._take_buffer = take
    assert step["step_fetched_bytes"] == 0
    assert step["state_host_bytes"] > 0
    on_host = step["state_host_bytes"] + step["unreached_bytes"]
    assert step["step_host_used_bytes"] == on_host


def hosted(tensor: torch.Tensor) -> bool:
    import oomph

    return oomph.residency(tensor).host_bytes > 0


@card
def test_an_optimizer_works_on_all_at_once_where_that_fits():
    from torch.optim import adam

    original = adam._multi_tensor_adam
    training = Optimizing(460)
    for _ in range(3):
        training.step()
    assert adam._multi_tensor_adam is not original
    del training
    gc.collect()
    small = Optimizing(100)
    for _ in range(2):
        small.step()
    assert adam._multi_tensor_adam is original
    for _ in range(4):
        small.step()
    assert reported()["text"].endswith("nothing is offloaded.")


@card
def test_what_is_left_free_after_shortages_is_tried_again_more_and_more_seldom():
    from oomph.offload.policy import DevicePlan

    plan = DevicePlan(0, target_bytes=math.inf)
    plan.recorder.capacity = 1 << 30
    plan.headroom.extra_bytes = 64 * MIB

    def quiet_steps() -> int:
        """How many steps without a shortage it takes until less is left free."""
        before, count = plan.headroom.extra_bytes, 0
        while plan.headroom.extra_bytes == before:
            plan.end_step(False, 0, state=(0, 0))
            count += 1
        return count

    def fall_short() -> None:
        plan.recorder.step.host_growth = 8 * MIB
        plan.end_step(True, 0, state=(0, 0))

    first = quiet_steps()
    assert plan.headroom.extra_bytes < 64 * MIB
    fall_short()
    assert quiet_steps() == 2 * first
    fall_short()
    assert quiet_steps() == 4 * first


@card
def test_what_was_of_no_use_is_forgotten_when_it_comes_no_more():
    from oomph.offload.policy import DevicePlan

    plan = DevicePlan(0, target_bytes=math.inf)
    for i in range(1000):
        plan.leavers.useless[i, 5 * MIB] = i
        plan.recorder.step.saves = [(0, 5 * MIB)]
        plan.end_step(False, 0, state=(0, 0))
    assert (0, 5 * MIB) in plan.leavers.useless  # seen in each
    assert len(plan.leavers.useless) < 200


def test_optimizers_step_while_another_thread_imports_the_planner():
    result = run(
        '''
        import importlib.abc, importlib.machinery, sys, threading
        import oomph
        oomph.install()
        import torch

        class Slow(importlib.abc.MetaPathFinder):
            """Has whoever imports the planner wait in the midst of it."""

            def find_spec(self, name, path, target=None):
                if name != "oomph.offload.policy":
                    return None
                spec = importlib.machinery.PathFinder.find_spec(name, path)
                load = spec.loader.exec_module

                def wait(module):
                    reached.set()
                    assert stepped.wait(60)
                    load(module)

                spec.loader.exec_module = wait
                return spec

        reached, stepped = threading.Event(), threading.Event()
        sys.meta_path.insert(0, Slow())
        weight = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        weight.sum().backward()
        thread = threading.Thread(target=lambda: __import__("oomph.planner"))
        thread.start()
        assert reached.wait(60)
        optimizer.step()
        stepped.set()
        thread.join()
        optimizer.step()
        print("stepped")
        ''',
        card="1GiB,context=0",
    )
    assert result.said == "stepped\n"


def test_what_other_threads_train_is_left_alone():
    result = run(
        '''
        import threading
        import oomph
        oomph.install()
        import torch
        from oomph import planner
        from torch import nn

        class Weight(nn.Parameter):
            """Tells who looks at its gradient."""

            @property
            def grad(self):
                seen.add(threading.current_thread())
                return super().grad

            @grad.setter
            def grad(self, value):
                nn.Parameter.grad.__set__(self, value)

        def train():
            for _ in range(3):
                weight.grad = torch.ones_like(weight)
                optimizer.step()

        seen = set()
        planner.note_shortage(0)
        weight = Weight(torch.ones(4, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        kept = torch.ones(2 << 20, device="cuda")
        other = torch.optim.Adam([kept.requires_grad_()])
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        oomph.evict(kept)
        for _ in range(3):
            kept.grad = torch.ones_like(kept)
            other.step()
        print(seen == {thread})
        ''',
        card="1GiB,context=0",
    )
    assert result.out == "True\n", result.err


RESTING = """
import oomph
import torch
from torch import nn

held = torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
model = nn.Sequential(*(nn.Linear(4096, 4096, device="cuda") for _ in range(5)))
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
used = []
for _ in range(10):
    model(torch.zeros(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    used.append(oomph.stats()["step_host_used_bytes"] >> 20)
states = [v for s in optimizer.state.values() for v in s.values() if v.is_cuda]
there = oomph.residency(states).host_bytes >> 20
del held
for _ in range(8):
    optimizer.step()
print(max(used[:3]) > 100, used[-4:], there > 100, oomph.residency(states).host_bytes)
"""


def test_state_that_rests_leaves_where_nothing_else_makes_room():
    result = run(RESTING, card="2GiB,context=0", conf="reserve:0,host_limit:16GiB")
    assert result.out.split("\n")[0] == "True [0, 0, 0, 0] True 0"
