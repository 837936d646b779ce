"""Programs that capture their network finish on cards that are too small for them.

Room for a capture is made before it begins: what rests between steps leaves, and what
is missing still is ready on the host.
"""

from __future__ import annotations

import json

import pytest
from support import MIB, Result, run

PROGRAM = """
import hashlib, json, sys
import oomph, torch
from torch import nn

kind, steps = sys.argv[1], 4
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(-1, -2) / 16).softmax(-1) @ v)
        return x + self.down(nn.functional.gelu(self.up(x)))

if kind == "attention":
    model = nn.Sequential(*[Block(384) for _ in range(4)])
    shape = (16, 64, 384)
else:
    layers = [nn.Sequential(nn.Linear(768, 768), nn.Tanh()) for _ in range(6)]
    model = nn.Sequential(*layers)
    shape = (1024, 768)
model.cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=kind == "step")

def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(shape, generator=generator).cuda()

def train(forward, x):
    optimizer.zero_grad(set_to_none=True)
    forward(x).square().mean().backward()
    optimizer.step()

if kind == "step":  # a whole one is captured
    x = torch.zeros(shape, device="cuda")
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for step in range(3):
            x.copy_(batch(step))
            train(model, x)
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train(model, x)
    for step in range(steps):
        x.copy_(batch(3 + step))
        graph.replay()
else:
    if kind == "callables":
        forward = torch.cuda.make_graphed_callables(model, (batch(0),))
    else:
        forward = torch.compile(model, backend="cudagraphs")
    for step in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        train(forward, batch(step))
torch.cuda.synchronize()
digest = hashlib.sha256()
for values in optimizer.state.values():
    for value in values.values():
        digest.update(value.cpu().numpy().tobytes())
for parameter in model.parameters():
    digest.update(parameter.detach().cpu().numpy().tobytes())
from torch._inductor.cudagraph_trees import get_manager, reset_cudagraph_trees
trees = get_manager(0, create_if_none_exists=False)
graphs = 0 if trees is None else trees.new_graph_id().id
stats = oomph.stats(0)
print(json.dumps({
    "digest": digest.hexdigest(),
    "graphs": graphs,
    "allocated": torch.cuda.max_memory_allocated(),
    "reserved": torch.cuda.max_memory_reserved(),
    **{k: stats[k] for k in (
        "evicted_bytes", "host_bytes_peak", "swap_drains", "rescues") if k in stats},
}), flush=True)
reset_cudagraph_trees()
"""


def train(kind: str, limit_bytes: int, memory: str, *settings: str) -> Result:
    conf = ",".join(("reserve:0", f"device_limit:{limit_bytes}", *settings))
    card = f"4GiB,context=0,memory={memory}"
    return run(PROGRAM, kind, card=card, conf=conf)


def told(result: Result) -> dict:
    assert result.code == 0, result.err
    return json.loads(result.out.splitlines()[-1])


@pytest.fixture(scope="module", params=["layers", "attention", "step", "callables"])
def native(request) -> tuple[str, dict]:
    """A program, and what it gives with PyTorch's allocator and room.

    The first two are compiled to trees of graphs; of the last, a whole training step
    is captured by hand, or its network by ``make_graphed_callables``.
    """
    result = run(
        PROGRAM,
        request.param,
        card="4GiB,context=0,memory=values",
    )
    return request.param, told(result)


@pytest.mark.parametrize("times", [1.2, 2.5])
def test_a_card_too_small_for_a_captured_network_gives_the_same_values(native, times):
    kind, wanted = native
    found = told(train(kind, int(wanted["allocated"] / times), "values"))
    assert found["digest"] == wanted["digest"]
    assert found["graphs"] == wanted["graphs"]
    assert found["graphs"] >= 2 or kind in ("step", "callables")
    assert found["host_bytes_peak"] > 0


def test_sizes_alone_finish_too(native):
    kind, wanted = native
    found = told(train(kind, int(wanted["allocated"] / 2.5), "none"))
    assert found["graphs"] == wanted["graphs"]


def test_a_program_that_fits_pays_nothing(native):
    kind, wanted = native
    found = told(train(kind, wanted["reserved"], "values"))
    assert found["digest"] == wanted["digest"]
    costs = ("evicted_bytes", "host_bytes_peak", "swap_drains", "rescues")
    assert [found[name] for name in costs] == [0, 0, 0, 0]


@pytest.mark.parametrize("native", ["layers"], indirect=True)
def test_without_offload_the_error_says_so(native):
    kind, wanted = native
    failed = train(kind, int(wanted["allocated"] / 1.6), "values", "offload:off")
    assert failed.code != 0
    assert "offload is off (offload:on-oom continues in host memory)" in failed.err


@pytest.mark.parametrize("native", ["layers"], indirect=True)
def test_where_the_host_has_no_room_either_the_error_says_what_helps(native):
    kind, wanted = native
    limit = int(wanted["allocated"] / 1.2)
    failed = train(kind, limit, "values", f"host_limit:{40 * MIB}", "host_ahead:0")
    assert failed.code != 0
    assert "torch.OutOfMemoryError" in failed.err
    assert "oomph.evict" in failed.err or "host_limit is 40.00 MiB" in failed.err
