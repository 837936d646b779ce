"""CUDA graphs compute what the CPU computes, bit for bit, however they share memory."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import torch
from support import Simulated, on_each
from torch import nn

CARD = "256MiB,context=0,memory=values,host=2GiB"
allocators = on_each(
    {
        "native": Simulated(CARD, None),
        "oomph": Simulated(CARD, "reserve:0,offload:off"),
    }
)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 48)
    )


def warm_up(body: Callable[[], object]) -> None:
    """Runs what is to be captured once before, as PyTorch wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()
    torch.cuda.current_stream().wait_stream(side)


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return len(found) == len(wanted) and all(
        torch.equal(a.cpu(), b) for a, b in zip(found, wanted, strict=True)
    )


# ---- graphs


@allocators
def test_a_replay_computes_with_what_its_inputs_hold_then():
    model = network()
    ours = copy.deepcopy(model).cuda()
    x = torch.zeros(16, 48, device="cuda")
    with torch.no_grad():
        warm_up(lambda: ours(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ours(x)
        for seed in range(3):
            wanted = torch.randn(16, 48, generator=torch.Generator().manual_seed(seed))
            x.copy_(wanted)
            graph.replay()
            assert torch.equal(y.cpu(), model(wanted))


@allocators
def test_captured_steps_of_training_give_the_cpus_parameters():
    model = network()
    ours = copy.deepcopy(model).cuda()
    x = torch.zeros(16, 48, device="cuda")
    on_cpu = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    on_card = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)

    def differentiate(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        loss = module(inputs).square().mean()
        loss.backward()
        return loss

    warm_up(lambda: differentiate(ours, x))
    on_card.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = differentiate(ours, x)
    for seed in range(4):
        inputs = torch.randn(16, 48, generator=torch.Generator().manual_seed(seed))
        x.copy_(inputs)
        graph.replay()
        on_card.step()
        on_cpu.zero_grad(set_to_none=True)
        wanted = differentiate(model, inputs)
        on_cpu.step()
        assert torch.equal(loss.detach().cpu(), wanted.detach())
    assert same(list(ours.parameters()), list(model.parameters()))


@allocators
def test_graphs_of_one_pool_replayed_in_any_order_compute_right():
    pool = torch.cuda.graph_pool_handle()
    scales = [2.0, 3.0, 5.0]
    x = torch.zeros(4096, device="cuda")
    graphs, results = [], []
    for scale in scales:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            scratch = (x * scale).sin()  # its memory is the next graph's too
            results.append(scratch.cumsum(0) + scale)
            del scratch
        graphs.append(graph)
    rng = random.Random(7)
    for step in range(12):
        which = rng.randrange(len(graphs))
        inputs = torch.randn(4096, generator=torch.Generator().manual_seed(step))
        x.copy_(inputs)
        graphs[which].replay()
        wanted = (inputs * scales[which]).sin().cumsum(0) + scales[which]
        assert torch.equal(results[which].cpu(), wanted), (step, which)


@allocators
def test_graphed_callables_train_as_the_cpu_does():
    model = network()
    ours = copy.deepcopy(model).cuda()
    sample = torch.randn(16, 48, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(ours, (sample,))
    on_cpu = torch.optim.AdamW(model.parameters(), lr=1e-2)
    on_card = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    for seed in range(4):
        inputs = torch.randn(16, 48, generator=torch.Generator().manual_seed(seed))
        for optimizer, module, x in (
            (on_card, graphed, inputs.cuda()),
            (on_cpu, model, inputs),
        ):
            optimizer.zero_grad(set_to_none=True)
            module(x.requires_grad_()).square().mean().backward()
            optimizer.step()
    assert same(list(ours.parameters()), list(model.parameters()))


# ---- trees, as torch.compile makes them


@allocators
def test_trees_compute_right_while_they_warm_up_record_replay_and_branch():
    from test_graphs import Trees

    def grow(args: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = args
        args.clear()
        return [x.exp(), x * 2]

    def total(args: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = args
        args.clear()
        return [x.sin().cumsum(1)]

    with Trees() as trees, torch.no_grad():
        sample = torch.zeros(64, 256, device="cuda")
        first, second = (
            trees.graphify(grow, sample, 2),
            trees.graphify(total, sample, 1),
        )
        for step in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(64, 256, generator=torch.Generator().manual_seed(step))
            branch = step // 4  # the other one restores the state of the pool
            grown = first(x.cuda())
            summed = second(grown[branch])
            wanted = [x.exp(), x * 2]
            assert same(grown, wanted), step
            assert same(summed, [wanted[branch].sin().cumsum(1)]), step
            del grown, summed
    del sample


@allocators
def test_compiled_for_cudagraphs_a_network_trains_as_the_cpu_does():
    torch._dynamo.reset()
    model = network()
    ours = copy.deepcopy(model).cuda()
    compiled = torch.compile(ours, backend="cudagraphs")
    on_cpu = torch.optim.SGD(model.parameters(), lr=0.1)
    on_card = torch.optim.SGD(ours.parameters(), lr=0.1)
    for seed in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        inputs = torch.randn(16, 48, generator=torch.Generator().manual_seed(seed))
        for optimizer, module, x in (
            (on_card, compiled, inputs.cuda()),
            (on_cpu, model, inputs),
        ):
            optimizer.zero_grad(set_to_none=True)
            module(x).square().mean().backward()
            optimizer.step()
    assert same(list(ours.parameters()), list(model.parameters()))
    from torch._inductor.cudagraph_trees import get_manager, reset_cudagraph_trees

    assert get_manager(0, create_if_none_exists=False) is not None  # graphs were used
    reset_cudagraph_trees()
    torch._dynamo.reset()
