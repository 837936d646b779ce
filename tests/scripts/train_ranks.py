"""Trains a network on all ranks that torchrun starts, each with a device of its own.

A plain PyTorch script: it knows nothing of oomph.

    torchrun --nproc-per-node 2 train_ranks.py --shard
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shard", action="store_true", help="parameters, by FSDP")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def distribute(network: nn.Sequential, shard: bool) -> nn.Module:
    if not shard:
        return DistributedDataParallel(network)
    for layer in network:
        fully_shard(layer)
    return fully_shard(network)


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    torch.cuda.set_device(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    width = arguments.width
    layers = [
        nn.Sequential(nn.Linear(width, width), nn.GELU())
        for _ in range(arguments.layers)
    ]
    network = distribute(nn.Sequential(*layers).cuda(), arguments.shard)
    optimizer = torch.optim.AdamW(network.parameters())
    for step in range(arguments.steps):
        x = torch.randn(arguments.batch, width, device="cuda")
        loss = F.mse_loss(network(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
