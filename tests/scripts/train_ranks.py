"""Trains a network on all ranks that torchrun starts, each with a device of its own.

A plain PyTorch script: it knows nothing of oomph.

    torchrun --nproc-per-node 2 train_ranks.py ddp fsdp by-hand
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "ways", nargs="+", choices=["ddp", "fsdp", "by-hand"], metavar="way"
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save", help="losses and parameters, to this name and rank")
    return parser.parse_args()


def distribute(network: nn.Sequential, way: str, device: str) -> nn.Module:
    if way == "ddp":
        return DistributedDataParallel(network)
    if way == "by-hand":
        return network
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    for layer in network:
        fully_shard(layer, mesh=mesh)
    return fully_shard(network, mesh=mesh)


def average_gradients(network: nn.Module) -> None:
    for parameter in network.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def on_cpu(value: torch.Tensor) -> torch.Tensor:
    """Of a parameter in shards, that of this rank."""
    own = value.to_local() if isinstance(value, DTensor) else value
    return own.detach().cpu()


def train(way: str, arguments: argparse.Namespace) -> list[torch.Tensor]:
    """Gives the losses and the parameters that this rank has."""
    width, rank = arguments.width, dist.get_rank()
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(width, width), nn.GELU())
        for _ in range(arguments.layers)
    ]
    network = nn.Sequential(*layers).to(arguments.device)
    network = distribute(network, way, arguments.device)
    optimizer = torch.optim.AdamW(network.parameters())
    torch.manual_seed(1 + rank)
    losses = []
    for step in range(arguments.steps):
        x = torch.randn(arguments.batch, width, device=arguments.device)
        loss = F.mse_loss(network(x), x)
        loss.backward()
        if way == "by-hand":
            average_gradients(network)
        optimizer.step()
        optimizer.zero_grad()
        print(f"{way} rank {rank} step {step} loss {loss.item():.6f}", flush=True)
        losses.append(loss.detach().cpu())
    return losses + [on_cpu(value) for value in network.parameters()]


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    found = {way: train(way, arguments) for way in arguments.ways}
    if arguments.save:
        torch.save(found, f"{arguments.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
