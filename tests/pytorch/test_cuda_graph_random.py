"""Random numbers in graphs: after PyTorch's test_cuda.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from both import both
from torch import nn
from torch.utils.checkpoint import checkpoint

SEED = 5
Draw = Callable[[torch.Tensor], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "normal": lambda x: torch.normal(torch.zeros_like(x), 1.0),
    "poisson": lambda x: torch.poisson(torch.full_like(x, 3.0)),
    "rand": lambda x: torch.rand(x.shape, device=x.device),
    "randint": lambda x: torch.randint(0, 9, x.shape, device=x.device).float(),
    "randn": lambda x: torch.randn(x.shape, device=x.device),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.3),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "geometric_": lambda x: x.clone().geometric_(0.3),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "normal_": lambda x: x.clone().normal_(),
    "random_": lambda x: x.clone().random_(),
    "uniform_": lambda x: x.clone().uniform_(),
}


def twice(act: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of something done two times, and what it gives: both results."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        results = act(), act()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, results


@pytest.mark.parametrize("name", ["dropout", "rrelu"])
@both
def test_graph_rng_functional(name):
    """Replays and eager work go on with each other's numbers."""
    draw: Draw = getattr(nn.functional, name)
    if name == "rrelu":
        draw = functools.partial(draw, training=True)
    x = torch.randn(10000, device="cuda")
    torch.cuda.manual_seed(SEED)
    wanted = x
    for _ in range(6):
        wanted = draw(wanted)
    place, now = x.clone(), x.clone()
    torch.cuda.manual_seed(SEED)

    def act() -> torch.Tensor:
        nonlocal now
        now = draw(now)
        return now

    now = place
    graph, (_, result) = twice(act)
    graph.replay()
    between = draw(draw(result.clone()))
    place.copy_(between)
    graph.replay()
    assert torch.equal(result, wanted)


@pytest.mark.parametrize("name", DRAWS)
@both
def test_graph_rng_distributions(name):
    draw, x = DRAWS[name], torch.zeros(1000, device="cuda")
    torch.cuda.manual_seed(SEED)
    wanted = [draw(x) for _ in range(6)]
    assert not torch.equal(wanted[0], wanted[1])
    torch.cuda.manual_seed(SEED)
    graph, results = twice(lambda: draw(x))
    found = []
    graph.replay()
    found += [result.clone() for result in results]
    found += [draw(x), draw(x)]
    graph.replay()
    found += results
    assert all(map(torch.equal, found, wanted))


@both
def test_graphsafe_set_get_rng_state():
    """A graph draws from the states that were its generator's when it was captured."""
    default = torch.cuda.default_generators[0]
    torch.cuda.manual_seed(SEED)
    first = default.graphsafe_get_state()
    second = default.clone_state()
    assert first.get_state().equal(second.get_state())
    x = torch.empty(1000, device="cuda")
    states = first, second
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    for state in states:
        graph.register_generator_state(state)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        results = []
        for state in states:
            default.graphsafe_set_state(state)
            results.append(x.clone().uniform_())
        default.graphsafe_set_state(first)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    assert torch.equal(*results)
    assert first.get_state().equal(second.get_state())
    before = results[0].clone()
    default.graphsafe_set_state(first)
    eager = x.clone().uniform_()  # the first state goes on, the second does not
    graph.replay()
    assert torch.equal(results[1], eager)
    assert not torch.equal(results[0], eager)
    assert not torch.equal(results[1], before)


@both
def test_graph_checkpoint_preserve_rng_state():
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(torch.randn(1, device="cuda"))

    def differentiate(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(function, x, use_reentrant=False, preserve_rng_state=True)
        (gradient,) = torch.autograd.grad(y, x)
        return gradient

    function(torch.ones(1, device="cuda"))
    torch.cuda.manual_seed(SEED)
    wanted = differentiate(torch.ones(1, device="cuda", requires_grad=True))
    torch.cuda.manual_seed(SEED)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        found = differentiate(torch.ones(1, device="cuda", requires_grad=True))
    torch.cuda.manual_seed(SEED)
    graph.replay()
    assert torch.equal(found, wanted)


@both
def test_graph_cudnn_dropout():
    """A graph of layers of cuDNN with dropout, and eager work after it."""
    import remote

    torch.manual_seed(SEED)
    model = nn.LSTM(32, 32, 2, dropout=0.5).cuda()
    x = torch.ones(10, 4, 32, device="cuda")
    before = torch.cuda.memory_allocated()
    model(x)
    # The state of dropout, which PyTorch has one of for each device.
    remote.kept_bytes[0] += torch.cuda.memory_allocated() - before
    graph, (first, second) = twice(lambda: model(x)[0])
    graph.replay()
    assert not torch.equal(first, second)
    once = first.clone()
    graph.replay()
    assert not torch.equal(first, once)
    assert model(x)[0].isfinite().all()
