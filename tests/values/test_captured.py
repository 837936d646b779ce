"""What a graph captured gives at each replay the values of the same work, launched."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import Simulated
from test_models import make_dropout_state
from torch import nn

native = Simulated("256MiB,context=0,memory=values", None)
ours = Simulated("256MiB,context=0,memory=values", "reserve:0")

STEPS, WARM_UP = 8, 3


def model(device: str) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    return nn.Sequential(*layers).to(device)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(6, 8), torch.randint(0, 4, (6,))) for _ in range(STEPS)]


class Training:
    """A model, its optimizer, and where its inputs lie."""

    def __init__(self, device: str) -> None:
        self.model = model(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.x = torch.zeros(6, 8, device=device)
        self.y = torch.zeros(6, dtype=torch.long, device=device)

    def load(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.x.copy_(batch[0])
        self.y.copy_(batch[1])

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def parameters(self) -> list[list[float]]:
        return [p.tolist() for p in self.model.parameters()]


def launched(device: str) -> tuple[list[float], list[list[float]]]:
    """The losses of all steps, and the parameters that they lead to."""
    training, losses = Training(device), []
    for batch in batches():
        training.load(batch)
        losses.append(training.step().item())
    return losses, training.parameters()


def replayed() -> tuple[list[float], list[list[float]]]:
    """The same, all steps but the first captured."""
    training, losses = Training("cuda"), []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in batches()[:WARM_UP]:
            training.load(batch)
            losses.append(training.step().item())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step()
    for batch in batches()[WARM_UP:]:
        training.load(batch)
        graph.replay()
        losses.append(loss.item())
    return losses, training.parameters()


def check_training() -> None:
    wanted = launched("cpu")
    assert launched("cuda") == wanted
    assert replayed() == wanted
    assert len(set(wanted[0])) == STEPS


@native
def test_a_captured_step_trains_to_the_cpus_values():
    check_training()


@ours
def test_a_captured_step_trains_to_the_cpus_values_under_oomph():
    check_training()


@native
def test_a_capture_computes_nothing():
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
    assert x.tolist() == [1.0] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        ("torch.linalg.inv(x.diag())", "linalg_inv_ex"),
    ],
)
@native
def test_what_cannot_be_captured_is_named(call, operator):
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(NotImplementedError, match=f"aten::{operator}.* be captured"),
        torch.cuda.graph(graph),
    ):
        eval(call, {"torch": torch, "F": F, "x": x})
    assert (x + 1).tolist() == [2.0] * 4


@pytest.mark.parametrize(
    "call",
    ["x.nonzero()", "x[x > 0]", "x.unique()", "x.bincount()"],
)
@native
def test_what_asks_for_values_cannot_be_captured_and_cuda_says_so(call):
    x = torch.ones(4, device="cuda", dtype=torch.long if "bin" in call else None)
    graph = torch.cuda.CUDAGraph()
    with (  # the capture is invalid, which its end says
        pytest.raises(RuntimeError, match="error during capture"),
        torch.cuda.graph(graph),
        pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
    ):
        eval(call, {"torch": torch, "x": x})
    assert (x + 1).tolist() == [2.0] * 4


@native
def test_what_needs_values_but_asks_for_none_is_computed_at_each_replay():
    def calls(x: torch.Tensor) -> list[torch.Tensor]:
        places = torch.nonzero_static(x > 3, size=6, fill_value=-1)
        return [places, x.mode().values, torch.histc(x, 4, 1, 9)]

    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = calls(x)
    for seed in range(3):
        inputs = torch.randint(10, (8,), generator=on_cpu_generator(seed)).float()
        x.copy_(inputs)
        graph.replay()
        assert [v.tolist() for v in kept] == [v.tolist() for v in calls(inputs)]


# ---- random numbers and recurrent networks


def numbers(x: torch.Tensor) -> list[torch.Tensor]:
    """What several operators draw in turn, some of them into `x`."""
    x.normal_()
    dropped = F.dropout(x, 0.5)
    picked = torch.multinomial(x.sigmoid(), 4, replacement=True)
    picked += torch.multinomial(x.sigmoid(), 4)
    flipped = torch.bernoulli(x.sigmoid()) + dropped
    return [x, dropped, torch.rand_like(x), picked, flipped]


@native
def test_replays_draw_what_the_cpu_draws_in_turn():
    x = torch.zeros(50, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.manual_seed(3)
    with torch.cuda.graph(graph):
        kept = numbers(x)
    found = []
    for _ in range(3):
        graph.replay()
        found += [v.tolist() for v in kept]
    found.append(torch.rand(5, device="cuda").tolist())
    torch.manual_seed(3)
    wanted = [v.tolist() for _ in range(3) for v in numbers(torch.zeros(50))]
    assert found == [*wanted, torch.rand(5).tolist()]


@native
def test_a_generator_that_a_graph_knows_draws_at_each_replay():
    ours = torch.Generator("cuda").manual_seed(7)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(ours)
    with torch.cuda.graph(graph):
        drawn = torch.randn(6, device="cuda", generator=ours)
    on_cpu = torch.Generator().manual_seed(7)
    for _ in range(3):
        graph.replay()
        assert drawn.tolist() == torch.randn(6, generator=on_cpu).tolist()


def recurrent(kind: str, device: str) -> nn.Module:
    torch.manual_seed(4)
    return getattr(nn, kind)(6, 5, 2, dropout=0.5, bidirectional=True).to(device)


def differentiate(network: nn.Module, x: torch.Tensor, packs: bool) -> torch.Tensor:
    inputs = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1]) if packs else x
    out = network(inputs)[0]
    loss = (out.data if packs else out).square().sum()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@native
def test_a_captured_recurrent_network_drops_and_differentiates_as_the_cpu_does(
    kind, packs
):
    make_dropout_state()
    network, on_cpu = recurrent(kind, "cuda"), recurrent(kind, "cpu")
    x = torch.zeros(4, 3, 6, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.manual_seed(9)
    with torch.cuda.stream(side):
        differentiate(network, x, packs)
    torch.cuda.current_stream().wait_stream(side)
    network.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = differentiate(network, x, packs)
    batches = [torch.randn(4, 3, 6, generator=on_cpu_generator(i)) for i in range(3)]
    torch.default_generator.manual_seed(9)  # the CPU's alone
    torch.empty((), dtype=torch.long).random_()  # the GPU seeds its dropout first
    differentiate(on_cpu, torch.zeros(4, 3, 6), packs)
    for batch in batches:
        on_cpu.zero_grad(set_to_none=True)
        wanted = differentiate(on_cpu, batch, packs)
        x.copy_(batch)
        graph.replay()
        assert loss.item() == wanted.item()
        for ours, its in zip(network.parameters(), on_cpu.parameters(), strict=True):
            assert torch.equal(ours.grad.cpu(), its.grad)


def on_cpu_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
