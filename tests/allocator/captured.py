"""A program that captures its network: what it computed, and what that took.

    python captured.py KIND

Kinds: ``layers`` and ``attention`` are compiled to trees of graphs; of ``step`` a whole
training step is captured by hand; the network of ``callables`` by
``make_graphed_callables``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS = 4
COMPILED = ("layers", "attention")
COUNTED = ("evicted_bytes", "swap_drains", "rescues")
TO_HOST = ("evicted_bytes", "rescued_bytes", "host_predicted_bytes", "sent_bytes")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(-1, -2) / 16).softmax(-1) @ v)
        return x + self.down(nn.functional.gelu(self.up(x)))


def network(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The network, and the shape of what it takes."""
    if kind == "attention":
        return nn.Sequential(*[Block(384) for _ in range(4)]), (16, 64, 384)
    layers = [nn.Sequential(nn.Linear(768, 768), nn.Tanh()) for _ in range(6)]
    return nn.Sequential(*layers), (1024, 768)


def train(kind: str) -> tuple[str, int]:
    """Trains; gives a digest of what was learned, and the number of graphs in trees."""
    torch.manual_seed(0)
    model, shape = network(kind)
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=kind == "step")

    def batch(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(shape, generator=generator).cuda()

    def learn(forward: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(x).square().mean().backward()
        optimizer.step()

    if kind == "step":
        x = torch.zeros(shape, device="cuda")
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for step in range(3):
                x.copy_(batch(step))
                learn(model, x)
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            learn(model, x)
        for step in range(STEPS):
            x.copy_(batch(3 + step))
            graph.replay()
    else:
        if kind == "callables":
            forward = torch.cuda.make_graphed_callables(model, (batch(0),))
        else:
            forward = torch.compile(model, backend="cudagraphs")
        for step in range(STEPS):
            torch.compiler.cudagraph_mark_step_begin()
            learn(forward, batch(step))
    torch.cuda.synchronize()
    digest = hashlib.sha256()
    for values in optimizer.state.values():
        for value in values.values():
            digest.update(value.cpu().numpy().tobytes())
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest(), graphs_in_trees() if kind in COMPILED else 0


def graphs_in_trees() -> int:
    """How many graphs the compiler's trees have; it forgets them."""
    from torch._inductor.cudagraph_trees import get_manager, reset_cudagraph_trees

    trees = get_manager(0, create_if_none_exists=False)
    count = 0 if trees is None else trees.new_graph_id().id
    reset_cudagraph_trees()
    torch._dynamo.reset()
    return count


def run(kind: str, limit_bytes: int | None = None) -> dict[str, Any]:
    """Trains with at most so much of the card, if it says how much, from then on.

    Gives what was computed and what that took. Nothing compiled or captured is left.
    """
    import oomph

    if limit_bytes is not None:
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes)
    before = oomph.stats(0)
    digest, graphs = train(kind)
    after = oomph.stats(0)
    grown = {k: after[k] - before[k] for k in (*COUNTED, *TO_HOST) if k in after}
    return {
        "digest": digest,
        "graphs": graphs,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "host_bytes_peak": after.get("host_bytes_peak", 0),
        "to_host": sum(grown.get(k, 0) for k in TO_HOST),
        **{k: grown[k] for k in COUNTED if k in grown},
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
