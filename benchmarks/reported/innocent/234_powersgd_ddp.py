# kind: DistributedDataParallel with the PowerSGD hook, one process; plain all-reduce for the first steps, then error memory and low-rank factors come into being, and the callbacks of the hook run on ever new streams of PyTorch's pool, each of which gets a cuBLAS workspace, until all have one; after pytorch/pytorch issue 47202 and PR 51427 (start_powerSGD_iter)
"""Spectra to concentrations, gradients compressed with rank 2.

https://github.com/pytorch/pytorch/pull/51427 (memory for error tensors, start_PowerSGD_iter),
https://github.com/pytorch/pytorch/issues/47202
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.nn.parallel import DistributedDataParallel


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class SpectraMixer(nn.Module):
    def __init__(self, points=512, patch=16, dim=96, depth=3, targets=5):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.blocks = nn.Sequential(*(MixerBlock(points // patch, dim) for _ in range(depth)))
        self.head = nn.Linear(dim, targets)

    def forward(self, spectra):
        x = self.embed(spectra.unflatten(-1, (-1, self.patch)))
        return self.head(self.blocks(x).mean(1))


def spectra(n, points=512, targets=5):
    grid = torch.linspace(0, 1, points)
    amount = torch.rand(n, targets)
    centres = torch.linspace(0.1, 0.9, targets)
    lines = torch.exp(-((grid - centres[:, None]) ** 2) / 0.002)
    return amount @ lines + 0.02 * torch.randn(n, points), amount


def train(rank, steps=170, batch=64):
    torch.manual_seed(rank)
    device = torch.device("cuda", rank)
    model = DistributedDataParallel(SpectraMixer().to(device), device_ids=[rank], gradient_as_bucket_view=True)
    state = powerSGD.PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=25, min_compression_rate=1.5,
        use_error_feedback=True, warm_start=True)
    model.register_comm_hook(state, powerSGD.powerSGD_hook)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for i in range(steps):
        x, y = spectra(batch)
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 25 == 0:
            print(f"step {i}: loss {loss.item():.4f}, {len(state.error_dict)} buckets with an error memory")


def main():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        try:
            train(rank)
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
