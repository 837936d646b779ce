"""What optimizers search for by values is held without them."""

from __future__ import annotations

import re

import pytest
from support import run


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_remembers_in_shapes_what_it_remembers_with_values(line_search):
    code = f"""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(400, 800), nn.Tanh(), nn.Linear(800, 400)).cuda()
x, y = torch.randn(2, 64, 400, device="cuda")
optimizer = torch.optim.LBFGS(
    model.parameters(), 0.1, 6, history_size=8, line_search_fn="{line_search}"
    if {line_search is not None} else None,
)

def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss

for _ in range(5):
    optimizer.step(closure)
pairs = len(optimizer.state[model[0].weight]["old_dirs"])
print("held", torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), pairs)
print("told", optimizer.param_groups[0]["tolerance_grad"])
"""
    held = {}
    for memory in ("none", "values"):
        done = run(code, card=f"1GiB,memory={memory}", OMP_NUM_THREADS="1")
        assert done.code == 0, done.said
        found = re.search(r"held (\d+) (\d+) 8\ntold 1e-07", done.out)
        held[memory] = [int(size) for size in found.groups()]
    # Where a search takes one more look, blocks of another size are found for it; how
    # many it takes with values, and so the peak, depends on how this CPU rounds.
    for ours, theirs, rel in zip(
        held["none"], held["values"], (0.01, 0.05), strict=True
    ):
        assert ours == pytest.approx(theirs, rel=0.0 if line_search is None else rel)
