"""CUDA graphs: captured, replayed, dropped while they run; captures that fail."""

from __future__ import annotations

from typing import Any

import torch

from campaign.machine import Captured, Machine, Missing, handler
from campaign.memory import new, numbers, ours, slow_kernel
from campaign.training import stack

# PyTorch's allocator of pinned memory asks them for good whose memory is wanted, which
# ends the process once they are gone.
_failed: list[torch.cuda.CUDAGraph] = []


def standing(device: int) -> torch.cuda.CUDAGraph:
    """A graph of a device that is there as long as the process.

    The first of a device makes the generator's state. Where no memory is left for it,
    PyTorch ends the process once the graph is dropped, whatever allocates.
    """
    graph = torch.cuda.CUDAGraph()
    one = torch.ones(1, device=device)
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
        one += 1
    return graph


def name_of(m: Machine, g: int, pool: int | None) -> str:
    """The pool of a new graph: graphs that share one wait for each other.

    PyTorch wants another once the last graph of a pool is gone.
    """
    if pool is None:
        return f"graph {g}"
    alive = [c.pool for c in m.graphs.values() if c.pool.startswith(f"pool {pool} ")]
    name = alive[0] if alive else f"pool {pool} {m.place}"
    if name not in m.shared:
        m.shared[name] = torch.cuda.graph_pool_handle()
    return name


@handler
def capture(
    m: Machine, g: int, r: int, a: int, s: int, works: int, pool: int | None
) -> None:
    """Captures some work on a copy of a tensor; its result is a register."""
    value = m.get(a)
    m.of_device(s, value)
    if m.is_inner:  # other threads make calls that captures forbid
        raise Missing
    m.forget_graph(g)
    name = name_of(m, g, pool)
    with m.on(s, reads=[value]):
        source = value.tensor.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=m.shared.get(name), stream=m.streams[s]):
        x = source * 1.1
        for turn in range(works):
            x = (x.sin() + source * (turn + 1)).remainder(2.0)
        result = x * 0.5
        del x
    made = m.put(r, s, result, pool=name, is_plain=False)
    m.captures += 1
    made.turn = m.captures
    m.graphs[g] = Captured(graph, source, made, name, s)
    replay(m, g, s)


@handler
def replay(m: Machine, g: int, s: int) -> None:
    """Runs a graph; what those captured after it have made in its pool is lost.

    They may have it where the graph has what it needs on the way.
    """
    found = m.graphs.get(g)
    if found is None:
        raise Missing
    known = [*m.values.values(), *(v for p in m.passes.values() for v in p.inputs)]
    result = found.result
    pool = [v for v in known if v.pool == result.pool and v.turn >= result.turn]
    if any(value.frozen for value in pool):
        raise Missing
    for r, value in [*m.values.items()]:
        if any(value is lost for lost in pool) and value is not result:
            m.drop(r, "later")
    m.settle(s, found.pool)
    with m.on(s, writes=[found.result]):
        found.graph.replay()
    m.debts.setdefault(found.pool, []).append(m.event(s))


@handler
def forget(m: Machine, g: int, s: int, us: int, r: int, to: int, kib: int) -> None:
    """Drops a graph, while it waits to run perhaps; then another needs memory."""
    found = m.graphs.get(g)
    if found is None:
        raise Missing
    if us > 0 and m.streams[s].device == found.source.device:
        with m.on(s, writes=[found.result]) as stream:
            slow_kernel(stream, found.source, us)
        replay(m, g, s)
    m.forget_graph(g)
    new(m, r, to, kib, "compute")


@handler
def fail_capture(m: Machine, a: int, s: int, how: str, kib: int) -> None:
    """A capture that PyTorch gives up, as programs that try to capture do."""
    value = m.get(a)
    m.of_device(s, value)
    if m.is_inner:
        raise Missing
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    device = value.tensor.device.index
    try:
        with torch.cuda.graph(graph, pool=pool, stream=m.streams[s]):
            x = torch.empty(kib * 256, device=value.tensor.device).fill_(1)
            if how == "item":
                x.sum().item()
            else:
                other = torch.cuda.Stream(value.tensor.device)
                other.wait_stream(m.streams[s])
                with torch.cuda.stream(other):
                    x.mul_(2)
    except torch.OutOfMemoryError:
        raise  # the capture itself ended well, so the graph gives its pool back
    except RuntimeError as error:
        assert "captur" in str(error), error
        m.closing.append(lambda: heal(pool, device))
        _failed.append(graph)
    torch.cuda.synchronize()


def heal(pool: Any, device: int) -> None:
    """Tells the allocator what PyTorch forgets: that nobody needs the pool any more.

    And PyTorch's own that the capture has ended: it would free nothing for the programs
    that come after this one. oomph must find that out by itself.
    """
    if ours() is None:
        torch._C._cuda_endAllocateToPool(device, pool)
    torch._C._cuda_releasePool(device, pool)


@handler
def compiled(m: Machine, layers: int, steps: int) -> None:
    """A network by ``torch.compile(backend="cudagraphs")``, forward and backward."""
    if m.is_inner:
        raise Missing
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    torch._dynamo.reset()
    m.settle(0)
    width = 512
    network = stack(layers, width, "cuda")
    run = torch.compile(network, backend="cudagraphs")
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)
    x = numbers(1100, 3, "cuda")[: 550 * width].view(550, width)
    try:
        for turn in range(steps):
            torch.compiler.cudagraph_mark_step_begin()
            loss = run(x).square().mean()
            loss.backward()
            m.look(f"loss {turn}", loss)
            optimizer.step()
            optimizer.zero_grad()
        for i, parameter in enumerate(network.parameters()):
            m.look(f"parameter {i}", parameter)
    finally:
        del run, network, optimizer, x
        torch.cuda.synchronize()
        reset_cudagraph_trees()
        torch._dynamo.reset()
