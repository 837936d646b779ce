"""Calls of modules with hooks of their own run again within these, which run once."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recomputing import STEPS, WIDTH, check_left_alone, compare, square, train
from support import Simulated
from test_recomputed_impurities import Pure, chain
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import spectral_norm

CARD = "256MiB,context=0,memory=values,cc=8.6,host=8GiB"
card = Simulated(CARD, "reserve:0,host_limit:4GiB")

RERUNS = STEPS - 3  # of one call: from the fourth step on


class Counts:
    """Counts how often it is called, and changes what it is told to."""

    def __init__(self, changes: Any = None) -> None:
        self.calls, self._changes = 0, changes

    def __call__(self, *told: Any) -> Any:
        self.calls += 1
        return self._changes(*told) if self._changes else None


def halved(module: nn.Module, args: Any) -> Any:
    return (args[0] * 0.5,)


def named(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] * 0.5,), kwargs


def doubled(module: nn.Module, args: Any, output: torch.Tensor) -> Any:
    return output * 2


def scaled(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return tuple(None if x is None else x * 0.9 for x in inputs)


WAYS = {
    "before": lambda m, h: m.register_forward_pre_hook(h),
    "before, changing": lambda m, h: m.register_forward_pre_hook(h),
    "before, by name": lambda m, h: m.register_forward_pre_hook(h, with_kwargs=True),
    "behind": lambda m, h: m.register_forward_hook(h),
    "behind, changing": lambda m, h: m.register_forward_hook(h),
    "backward": lambda m, h: m.register_full_backward_hook(h),
    "backward, before": lambda m, h: m.register_full_backward_pre_hook(h),
}
CHANGES = {
    "before, changing": halved,
    "before, by name": named,
    "behind, changing": doubled,
    "backward": scaled,
}


@pytest.mark.parametrize("way", WAYS)
@card
def test_a_block_with_a_hook_runs_again_and_the_hook_does_not(way):
    def run() -> list[Any]:
        model, counts = chain(Pure(), Pure()), Counts(CHANGES.get(way))
        WAYS[way](model[0], counts)
        return [*train(model), counts.calls]

    seen, early = compare(run)
    assert seen.reruns.count("Pure") == 2 * RERUNS, seen
    assert early.reruns.count("Pure") >= RERUNS, early  # of the other
    assert "it has hooks" in early.left_alone, early


@card
def test_a_hook_that_comes_later_stops_it_until_it_was_tried():
    def run() -> list[Any]:
        model, counts, steps = chain(Pure(), Pure()), Counts(), []

        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            steps.append(len(steps))
            if len(steps) == STEPS - 1:
                model[0].register_forward_hook(counts)
            return square(model, x)

        return [*train(model, loss), counts.calls]

    seen, _ = compare(run)
    assert seen.reruns.count("Pure") == 2 * RERUNS - 2, seen


class Scales(Pure):
    """Goes by a number that a hook behind it changes."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x) * self.factor


@card
def test_a_hook_that_changes_what_forward_goes_by_is_found():
    def change(module: Any, *_: Any) -> None:
        module.factor *= 0.5

    def run() -> list[Any]:
        model = chain(Scales(), Pure())
        model[0].register_forward_hook(change)
        return train(model)

    check_left_alone(run, "Scales", "")


class GoesBySettings(Pure):
    """The same in a dict, whose name is much like that of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hyper_parameters = {"factor": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x) * self.hyper_parameters["factor"]


@card
def test_it_is_found_whatever_the_attribute_is_called():
    def change(module: Any, *_: Any) -> None:
        module.hyper_parameters["factor"] *= 0.5

    def run() -> list[Any]:
        model = chain(GoesBySettings(), Pure())
        model[0].register_forward_hook(change)
        return train(model)

    check_left_alone(run, "GoesBySettings", "")


class Shared(nn.Module):
    """Calls one block twice, whose weight a hook makes anew before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Wide()
        spectral_norm(self.block, "weight")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(x))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x @ self.weight).exp().tanh().cos()


@card
def test_a_weight_that_a_hook_makes_is_that_of_its_call():
    seen, _ = compare(lambda: train(chain(Shared(), Pure())))
    assert seen.reruns.count("Wide") == RERUNS, seen  # the second call of each step
    assert "Wide: weight changes after it has run" in seen.left_alone


@card
def test_a_weight_that_was_made_anew_before_backward_does_no_harm():
    def run() -> list[Any]:
        block, steps = Wide(), []
        spectral_norm(block, "weight")

        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            steps.append(len(steps))
            value = square(model, x)
            if len(steps) > 5:  # nothing told of it when the call was tried
                with torch.no_grad():
                    model(x[:1])
            return value

        return train(chain(block, Pure()), loss)

    seen, _ = compare(run)
    assert seen.reruns.count("Wide") == RERUNS, seen


@card
def test_hooks_within_a_call_keep_it_alone():
    def run() -> list[Any]:
        model = chain(Pure(), Pure())
        model[0].up.register_forward_hook(Counts())
        return train(model)

    seen, _ = compare(run)
    assert seen.reruns.count("Pure") == RERUNS, seen
    assert "Linear in it has hooks" in seen.left_alone


@card
def test_a_module_keeps_the_hooks_it_had():
    def run() -> list[Any]:
        model = chain(Pure(), Pure())
        counts = Counts()
        model[0].register_forward_pre_hook(counts)
        found = train(model)
        others = [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        hooks = [len(m[0]._forward_pre_hooks) for m in others]
        return [*found, hooks]

    compare(run)


@pytest.mark.parametrize("at", ["a pre-hook", "forward"])
@card
def test_a_forward_that_fails_leaves_no_hook(at):
    class Failing(Pure):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if at == "forward" and x.shape[0] == 1:
                raise ValueError
            return self.compute(x)

    def fails(module: nn.Module, args: Any) -> None:
        if at == "a pre-hook" and args[0].shape[0] == 1:
            raise ValueError

    def run() -> list[Any]:
        model = chain(Failing(), Pure())
        model[0].register_forward_pre_hook(fails)

        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(ValueError):
                model(x[:1])
            return square(model, x)

        return [*train(model, loss), len(model[0]._forward_pre_hooks)]

    compare(run)


@card
def test_blocks_under_fsdp_run_again_while_their_parameters_are_there():
    def run() -> list[Any]:
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            model = chain(Pure(), Pure()).cuda()
            mesh = dist.init_device_mesh("cuda", (1,))
            for block in model:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            results = train(model)
            del model
            return [r.to_local() if isinstance(r, DTensor) else r for r in results]
        finally:
            dist.destroy_process_group()

    seen, _ = compare(run)
    assert seen.reruns.count("FSDPPure") == 2 * RERUNS, seen
