"""What the error advises to a rank of several."""

from __future__ import annotations

import pytest
from ranks import run_ranks

MODEL = """
import os
from torch import nn
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
WRAP
try:
    model(torch.ones(1024, 2048, device=device)).sum().backward()
    kept = torch.empty(1 << 30, device=device)
except torch.OutOfMemoryError as error:
    print(error)
"""
WRAPS = {
    "FSDP2": (
        "from torch.distributed.fsdp import fully_shard\n"
        "for layer in model: fully_shard(layer)\n"
        "fully_shard(model)",
        False,
    ),
    "FSDP1": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(model, device_id=rank)",
        False,
    ),
    "DDP": (
        "model = nn.parallel.DistributedDataParallel(model, [rank])",
        True,
    ),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_sharding_is_advised_only_where_parameters_are_whole(kind):
    wrap, is_advised = WRAPS[kind]
    code = MODEL.replace("WRAP", wrap)
    conf = "offload:off,reserve:0,error:full"
    for each in run_ranks(2, code, "1GiB,context=0", conf, ends=False):
        assert "CUDA out of memory" in each.out, each.err
        assert ("FSDP (ZeRO-3)" in each.out) is is_advised, each.out
