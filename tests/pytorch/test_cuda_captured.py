"""Models and optimizers in graphs: after PyTorch's test_cuda.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from both import both
from torch import nn

Graph = torch.cuda.CUDAGraph


class FromDict(nn.Module):
    """Takes a dictionary, of which it uses one entry."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.net(inputs["x"])


class ToDict(nn.Module):
    """Gives a dictionary, and has no parameters."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = torch.arange(x.size(0), device=x.device).view(-1, 1)
        return {"output": torch.gather(x, 0, rows.repeat(1, x.size(1)))}


kinds = pytest.mark.parametrize(
    "amp, cached, unused",
    [(False, False, True), (True, False, True), (False, False, False)],
)


@kinds
@both
def test_graph_make_graphed_callables(amp, cached, unused):
    """Graphed parts train as the model does; PyTorch's has dropout in them, too."""
    torch.manual_seed(5)
    rows, width = 16, 24

    def random(**options: Any) -> torch.Tensor:
        return torch.randn(rows, width, device="cuda", **options)

    control = nn.Sequential(FromDict(width), nn.Linear(width, width), ToDict()).cuda()
    graphed = copy.deepcopy(control)
    unused_input = random(requires_grad=True)
    x = {"x": random()} if not unused else {"x": random(), "unused": unused_input}
    h, h2, guess = (random(requires_grad=True) for _ in range(3))
    parts = (*graphed, nn.functional.relu, nn.functional.mse_loss)
    samples = ((x,), (h,), (h2,), (guess,), (guess.detach().requires_grad_(), random()))
    autocast = torch.amp.autocast(device_type="cuda", enabled=amp, cache_enabled=cached)
    with autocast:
        made = torch.cuda.make_graphed_callables(
            parts, samples, allow_unused_input=unused
        )
    graphed = nn.Sequential(*made[:3])
    data = [(random(), random()) for _ in range(4)]
    for model, relu, loss_of in (
        (graphed, *made[3:]),
        (control, nn.functional.relu, nn.functional.mse_loss),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, wanted in data:
            optimizer.zero_grad(set_to_none=True)
            with torch.amp.autocast("cuda", enabled=amp, cache_enabled=cached):
                result = relu(model({**x, "x": inputs})["output"])
                loss_of(result, wanted).backward()
            optimizer.step()
    for p, wanted in zip(graphed.parameters(), control.parameters(), strict=True):
        torch.testing.assert_close(p, wanted)
    graphed.eval(), control.eval()  # which is not graphed
    with torch.no_grad():
        found, wanted = (m({**x, "x": data[0][0]}) for m in (graphed, control))
    torch.testing.assert_close(found["output"], wanted["output"])


@kinds
@both
def test_graph_make_graphed_callables_parameterless_nograd_module(amp, cached, unused):
    x = torch.randn(16, 24, device="cuda")
    autocast = torch.amp.autocast(device_type="cuda", enabled=amp, cache_enabled=cached)
    with autocast:
        graphed = torch.cuda.make_graphed_callables(
            ToDict(), (x,), allow_unused_input=unused
        )
        for _ in range(3):
            data = torch.rand_like(x, requires_grad=True)
            assert torch.equal(graphed(data)["output"], ToDict()(data)["output"])


@both
def test_graph_make_graphed_callables_same_pool():
    torch.manual_seed(5)
    pool = torch.cuda.graph_pool_handle()
    pairs = []
    for _ in range(3):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)).cuda()
        x = torch.randn(4, 8, device="cuda")
        twin = copy.deepcopy(model)
        graphed = torch.cuda.make_graphed_callables(twin, (x,), pool=pool)
        pairs.append((model, graphed))
    for model, graphed in pairs:
        x = torch.randn(4, 8, device="cuda")
        results = [net(x) for net in (model, graphed)]
        for result in results:
            result.norm().backward()
        assert torch.equal(*results)
        for p, q in zip(model.parameters(), graphed.parameters(), strict=True):
            assert torch.equal(p, q) and torch.equal(p.grad, q.grad)
            assert p.data_ptr() != q.data_ptr()
            assert p.grad.data_ptr() != q.grad.data_ptr()


# ---- optimizers

CAPTURABLE = ("Adam", "AdamW", "ASGD", "Adamax", "NAdam", "RAdam", "Adadelta")
CAPTURABLE += ("RMSprop", "Rprop")
WARM_UPS, REPLAYS = 3, 2


def step_with(optimizer: Any, parameters: list[Any], grads: list[Any]) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    optimizer.step()


@pytest.mark.parametrize("name", CAPTURABLE)
@both
def test_graph_optims(name):
    """A captured step does as the optimizer does without a graph."""
    torch.manual_seed(1)
    kind: Any = getattr(torch.optim, name)
    shapes = [(5, 5), (6, 6), ()]
    start = [torch.randn(shape, device="cuda") for shape in shapes]
    grads = [[torch.randn_like(p) for p in start] for _ in range(WARM_UPS + REPLAYS)]
    control, graphed = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    for which in (control, graphed):
        optimizer = kind(which, lr=0.1, capturable=which is graphed)
        for now in grads[:WARM_UPS]:
            step_with(optimizer, which, now)
        if which is graphed:
            graph = Graph()
            with torch.cuda.graph(graph):
                optimizer.step()
        for now in grads[WARM_UPS:]:
            if which is control:
                step_with(optimizer, which, now)
                continue
            for parameter, grad in zip(which, now, strict=True):
                parameter.grad.copy_(grad)
            graph.replay()
    for p, wanted in zip(graphed, control, strict=True):
        torch.testing.assert_close(p, wanted)


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("name", CAPTURABLE)
@both
def test_graph_optims_with_explicitly_capturable_param_groups(name, second):
    """A group that is not capturable fails in a capture; nothing stays behind."""
    kind: Any = getattr(torch.optim, name)
    grads = [[torch.randn(1, device="cuda") for _ in "ab"] for _ in range(5)]
    control, ours = (
        [nn.Parameter(torch.ones(1, device="cuda")) for _ in "ab"] for _ in "ab"
    )
    plain = kind(control)
    for now in grads:
        step_with(plain, control, now)
    wanted = (True, second)
    groups = [
        {"params": [p], "capturable": c} for p, c in zip(ours, wanted, strict=True)
    ]
    optimizer, graph = kind(groups), Graph()
    for now in grads[:WARM_UPS]:
        step_with(optimizer, ours, now)
    if not second:
        with (
            pytest.raises(RuntimeError, match="Attempting CUDA graph"),
            torch.cuda.graph(graph),
        ):
            optimizer.step()
        return
    with torch.cuda.graph(graph):
        optimizer.step()
    for now in grads[WARM_UPS:]:
        for parameter, grad in zip(ours, now, strict=True):
            parameter.grad.copy_(grad)
        graph.replay()
    for p, wanted in zip(ours, control, strict=True):
        torch.testing.assert_close(p, wanted)


FUSED = ("Adam", "AdamW", "SGD")


@pytest.mark.parametrize("name", FUSED)
@both
def test_graph_scaling_fused_optimizers(name):
    torch.manual_seed(2)
    kind: Any = getattr(torch.optim, name)
    options = {} if name == "SGD" else {"capturable": True}
    start = [torch.randn(shape, device="cuda") for shape in ((5, 5), (6, 6))]
    grads = [[torch.randn_like(p) for p in start] for _ in range(WARM_UPS + REPLAYS)]
    ends = []
    for graphed in (False, True):
        ours = [p.clone().requires_grad_() for p in start]
        optimizer = kind(ours, lr=0.1, fused=True, **(options if graphed else {}))
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
        scaler._lazy_init_scale_growth_tracker(torch.device("cuda"))
        graph = None
        for step, now in enumerate(grads):
            for parameter, grad in zip(ours, now, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.copy_(grad)
            if graphed and step == WARM_UPS:
                graph = Graph()
                with torch.cuda.graph(graph):
                    scaler.step(optimizer)
                    scaler.update()
            if graph is not None:
                graph.replay()
            else:
                scaler.step(optimizer)
                scaler.update()
        ends.append(ours)
    for p, wanted in zip(*ends, strict=True):
        torch.testing.assert_close(p, wanted)


@pytest.mark.parametrize(
    "foreach, fused", [(False, False), (True, False), (False, True)]
)
@pytest.mark.parametrize("name", FUSED)
@both
def test_graph_grad_scaling(name, foreach, fused):
    """Scales that are found outside are used by the graph at its next replay."""
    kind: Any = getattr(torch.optim, name)
    scaler = torch.amp.GradScaler(device="cuda", init_scale=4.0)
    weight = torch.ones(100, device="cuda", requires_grad=True)
    optimizer = kind([weight], lr=0.1, foreach=foreach, fused=fused)
    x, graph, side = torch.ones_like(weight), Graph(), torch.cuda.Stream()

    def backward() -> None:
        scaler.scale((weight.half() * x).sum()).backward()

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        backward()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        backward()
    for value, scale, tracker, grad in (
        (5, 4, 1, 20.0),
        (20000, 2, 0, float("inf")),
        (5, 2, 1, 10.0),
        (40000, 1, 0, float("inf")),
    ):
        x.fill_(value)
        graph.replay()
        assert bool((weight.grad == grad).all())
        scaler.step(optimizer)
        scaler.update()
        assert (scaler._scale.item(), scaler._growth_tracker.item()) == (scale, tracker)
