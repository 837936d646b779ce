"""FSDP2 in a world of one: prints each step's loss and the gradients' norms.

    train_fsdp2.py BATCH STEPS [OPTIMIZER]

Its reduce-scatter makes the gradients on a stream of its own, of which nobody tells the
allocator, and unsharded parameters are storages that are resized to nothing and back.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, BLOCKS = 1024, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.linear(x))


batch, steps = map(int, sys.argv[1:3])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cuda", (1,))
torch.manual_seed(0)
with torch.device("cuda"):
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
if "sgd" in sys.argv:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(batch, WIDTH, device="cuda")
for _ in range(steps):
    loss = model(x).square().mean()
    loss.backward()
    # In their order on the device, without waiting for it.
    norms = [p.grad.to_local().norm() for p in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), *(norm.item() for norm in norms), flush=True)
torch.cuda.synchronize()
os._exit(0)  # the threads of the process group are not waited for
