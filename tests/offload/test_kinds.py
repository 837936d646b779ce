"""Kinds of steps: plans for each, chosen by how a step begins."""

import torch
from oomph.offload.kinds import Kinds, Predicted, Repeated, StepPlan
from oomph.offload.record import Event, Step
from support import MIB, Simulated
from torch import nn

small = "384MiB,context=0,host=8GiB"
sends = Simulated(small, "reserve:0,host_limit:4GiB,recompute:off")
recomputes = Simulated(small, "reserve:0,host_limit:4GiB")


def step_of(*sizes: int) -> Step:
    """Saves storages of these sizes and uses them, beside 100 bytes."""
    events, total = [], 100
    for place, size in enumerate(sizes):
        total += size
        events.append(Event(place, False, total, total))
    for place in reversed(range(len(sizes))):
        events.append(Event(place, True, total, total))
        total -= sizes[place]
    return Step(events=events, saves=list(enumerate(sizes)))


def plan_of(*sizes: int, target_bytes: float = 0) -> StepPlan:
    return StepPlan(like=step_of(*sizes), target_bytes=target_bytes)


def test_a_kind_is_known_from_what_was_saved_first():
    kinds = Kinds()
    short, long = plan_of(10, 20, 30), plan_of(20, 40, 60)
    kinds.add(short)
    kinds.add(long)
    assert kinds.find(0, 10) is short
    assert kinds.find(1, 60) is long
    assert kinds.find(0, 14) is None
    assert kinds.nearest(0, 14) is short
    assert kinds.nearest(0, 30) is long


def test_of_kinds_that_begin_alike_most_leaves():
    kinds = Kinds()
    kinds.add(plan_of(10, 20, 90, target_bytes=50))
    kinds.add(plan_of(10, 20, 30))
    found = kinds.find(1, 30)
    assert found is not None
    assert found.target_bytes == 50


def test_a_step_takes_the_place_of_the_last_of_its_kind_and_the_oldest_goes():
    kinds = Kinds()
    first, second = plan_of(100, 200), plan_of(100, 201)
    kinds.add(first)
    kinds.add(second)
    assert kinds.find(0, 100) is second
    assert len(kinds) == 1
    for i in range(20):
        kinds.add(plan_of(1000 * 2**i))
    assert kinds.find(0, 100) is None
    assert len(kinds) < 20


def test_needs_of_larger_and_smaller_steps():
    step = step_of(10, 20)
    assert step.needs() == [110, 130, 130, 110]
    assert step.needs(factor=2)[1] == 150  # beyond what was there when it began, all
    assert step.needs(factor=2)[1] >= step_of(20, 40).needs()[1] - 10
    smaller = step.needs(factor=0.5)
    real = step_of(5, 10).needs()
    assert all(real[i] <= smaller[i] <= need for i, need in enumerate(step.needs()))
    assert smaller[2] < 130


class Lengths:
    """Layers whose batches have one of several lengths."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24))).cuda()
        self.step(8)  # cuBLAS's workspace comes while there is room for it

    def step(self, length: int) -> int:
        """Gives the bytes that it used on host pages."""
        import oomph

        x = torch.randn(length, 512, device="cuda")
        for layer in self.model:
            x = layer(x).sin()
        x.sum().backward()
        self.model.zero_grad()
        oomph.step()
        return oomph.stats()["step_host_used_bytes"]


def use_of_kinds() -> list[int]:
    """Of steps of three lengths, once all are planned."""
    training = Lengths()
    lengths = [2048, 6144, 4096]
    for length in 4 * lengths:
        training.step(length)
    return [training.step(length) for length in 2 * lengths]


@sends
def test_steps_of_kinds_that_were_met_use_no_host_pages():
    import oomph

    assert use_of_kinds() == [0] * 6
    assert oomph.stats()["rescues"] > 0


@recomputes
def test_steps_of_kinds_use_no_host_pages_where_calls_run_again():
    assert use_of_kinds() == [0] * 6


@sends
def test_a_length_that_is_new_is_planned_from_the_nearest():
    training = Lengths()
    for length in (4096, 4096, 4096, 4096):
        training.step(length)
    assert training.step(4700) <= 16 * MIB
    assert training.step(6144) <= 24 * MIB


@sends
def test_hooks_stay_longer_where_shortages_come_back():
    import oomph

    training, used = Lengths(), []
    for _ in range(5):
        used.append(training.step(6144))
        for _ in range(12):
            training.step(768)
    assert used[1] >= used[0] > 0
    assert used[-2:] == [0, 0]
    for _ in range(70):
        training.step(512)
    plan = oomph.planner.explain()[0]
    assert plan["text"].endswith("nothing is offloaded.")


@sends
def test_state_on_the_host_is_worked_on_by_pieces_though_it_need_not_be_there():
    import oomph

    layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(12)).cuda()
    optimizer = torch.optim.Adam(layers.parameters())
    used = []
    for step in range(10):
        x = torch.randn(4096, 1024, device="cuda")
        for layer in layers:
            x = layer(x).sin()
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        used.append(oomph.stats()["step_host_used_bytes"])
        if step == 5:
            state = [v for s in optimizer.state.values() for v in s.values()]
            moved = oomph.evict([value for value in state if value.is_cuda])
            assert moved.moved_bytes > 80 * MIB
    assert used[-2:] == [0, 0], used


def planned(repeated: Repeated, step: Step, asked: object = "this") -> bool:
    """Whether a plan for a step is made anew; it lets all leave that is saved."""
    made = []

    def anew() -> StepPlan:
        made.append(1)
        return StepPlan(like=step, target_bytes=float(step.total_bytes))

    found = repeated.plan(step, asked, anew)
    assert found.like.is_same(step) and found.target_bytes == step.total_bytes
    return bool(made)


def test_steps_that_repeat_are_planned_until_the_plan_stays():
    repeated = Repeated()
    assert [planned(repeated, step_of(10, 20)) for _ in range(5)] == [True] * 2 + [
        False
    ] * 3
    # Another step, and what it was before.
    assert planned(repeated, step_of(10, 21))
    assert planned(repeated, step_of(10, 20))


def test_what_is_asked_otherwise_is_planned_anew():
    repeated = Repeated()
    for _ in range(3):
        planned(repeated, step_of(10, 20))
    assert planned(repeated, step_of(10, 20), "less room")
    assert planned(repeated, step_of(10, 20), None)  # after a rescue
    assert planned(repeated, step_of(10, 20), None)


# ---- Blocks that go to the host at once


def test_what_lay_on_the_host_is_enough_until_it_was_not():
    first = Predicted().after_rescues(wanted_bytes=120, had_bytes=96)
    assert first == Predicted(120, 96)
    second = first.after_rescues(wanted_bytes=40, had_bytes=30)
    assert second == Predicted(120, 120)  # 96 was too little


def test_all_that_is_wanted_lies_on_the_host_where_steps_change():
    assert Predicted().after_rescues(120, had_bytes=0) == Predicted(120, 120)
    assert Predicted().after_rescues(120, had_bytes=300) == Predicted(120, 120)
