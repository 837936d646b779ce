"""Programs whose calls run again in backward, and what became of those calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

ROWS, WIDTH = 64, 32
STEPS = 8

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@dataclass
class Seen:
    """What became of the calls.

    Attributes:
        reruns: Classes of the modules whose calls were to run again, each call once.
        left_alone: Why others were not.
    """

    reruns: list[str] = field(default_factory=list)
    left_alone: str = ""


def choose_all(record: Any, limit_bytes: float, link: Any) -> Any:
    """Recomputes all that may be, but for a call around all others."""
    from oomph.recompute import timeline

    def outermost(indices: set[int]) -> set[int]:
        blocks = record.blocks
        return {
            i
            for i in indices
            if not any(blocks[k].contains(blocks[i]) for k in indices - {i})
        }

    every = set(range(len(record.blocks)))
    chosen = outermost(every)
    if len(chosen) == 1 < len(every):
        chosen = outermost(every - chosen)
    return timeline.play(record, frozenset(chosen), limit_bytes, link)


@contextlib.contextmanager
def recomputing(device: int = 0, early: bool = False) -> Iterator[Seen]:
    """A device's memory is taken for short, and whatever may run again does.

    Args:
        device: Its index.
        early: Whether from the first step on, with nothing that leaves for the host.
    """
    from oomph import planner
    from oomph.offload import activations, blocks, policy
    from oomph.offload.devices import Mode
    from oomph.recompute import followers, purity, schedule

    seen = Seen()

    class Rerun(followers.Rerun):
        def __init__(self, module: nn.Module, *arguments: Any) -> None:
            super().__init__(module, *arguments)
            seen.reruns.append(type(module).__name__)

    def room(plan: policy.DevicePlan, waits: Any) -> blocks.Room:
        return blocks.Room(plan.index, 1, plan.link.speed(), waits)

    with (
        mock.patch.object(activations, "SMALL_BYTES", 1 << 10),
        mock.patch.multiple(
            blocks, _LEAST_BYTES=1, _LEAST_SHARE=1 << 40, _MOST_SHARE=1e15
        ),
        mock.patch.object(policy.DevicePlan, "room", room),
        mock.patch.object(schedule, "choose", choose_all),
        mock.patch.object(followers, "Rerun", Rerun),
        mock.patch.object(purity, "Rerun", Rerun),
    ):
        if early:
            planner.set_mode(Mode(sends=False, early=True))
        else:
            planner.note_shortage(device)
        assert planner._planner is not None
        watched = planner._planner.blocks
        try:
            yield seen
            plan = watched.plan
            seen.left_alone = "; ".join(watched.left_alone)
            assert early or (plan and plan.recomputed) or not seen.reruns
        finally:
            planner.set_mode(Mode())
            planner.stop()


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def train(model: nn.Module, loss: Loss = square, steps: int = STEPS) -> list[Any]:
    """Losses, parameters, buffers and random states."""
    model.cuda()
    torch.manual_seed(1)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(ROWS, WIDTH, device="cuda")
        value = loss(model, x)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.detach().cpu())
    return [*losses, *ends(model)]


def ends(*models: nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers and the states of both generators."""
    values = [v.detach().cpu() for m in models for v in m.state_dict().values()]
    return [*values, torch.get_rng_state(), torch.cuda.get_rng_state()]


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, tensors bit for bit."""
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and one == other
    return one.dtype == other.dtype and torch.equal(one, other)


def compare(run: Callable[[], list[Any]], device: int = 0) -> tuple[Seen, Seen]:
    """Runs a program with enough memory, then with calls of a device that run again.

    Fails if their results differ, or if either leaves hooks or a mode on.

    Returns:
        What became of the calls that may run again from the fourth step on, and of
        those that may from the first.
    """
    torch.manual_seed(0)
    wanted = run()
    return compared(run, wanted, device), compared(run, wanted, device, early=True)


def check_known_late_alone(run: Callable[[], list[Any]]) -> Seen:
    """What forbids it comes after the call, so that the first step cannot know it.

    There it is an error, before backward uses anything that is wrong.

    Returns:
        What became of the calls where all is known before any runs again.
    """
    torch.manual_seed(0)
    seen = compared(run, run(), 0)
    with (
        recomputing(early=True),
        pytest.raises(RuntimeError, match="modified by an inplace operation"),
    ):
        run()
    return seen


def compared(
    run: Callable[[], list[Any]], wanted: list[Any], device: int, early: bool = False
) -> Seen:
    """Runs a program with calls of a device that run again, and compares its values."""
    torch.manual_seed(0)
    with recomputing(device, early) as seen:
        found = run()
    check_clean()
    assert len(found) == len(wanted)
    pairs = enumerate(zip(found, wanted, strict=True))
    bad = [i for i, (a, b) in pairs if not same(a, b)]
    assert bad == [], f"other values: {bad} of {len(found)}; {seen}"
    return seen


def check_clean() -> None:
    """Neither hooks nor modes are on, as outside of all modules."""
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch._C._len_torch_dispatch_stack() == 0


def check_recomputed(run: Callable[[], list[Any]], *names: str) -> None:
    """The same, and that calls of these classes ran again, from the 4th step on."""
    for seen in compare(run):
        assert set(names) <= set(seen.reruns), seen
        assert len(seen.reruns) >= STEPS - 3, seen


def check_left_alone(run: Callable[[], list[Any]], name: str, reason: str) -> None:
    """The same, and that no call of this class ran again, for this reason."""
    for seen in compare(run):
        assert f"{name}: " in seen.left_alone and reason in seen.left_alone, seen
        assert name not in seen.reruns, seen
