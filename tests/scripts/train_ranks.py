"""Trains a network on all ranks that torchrun starts, each with a device of its own.

A plain PyTorch script: it knows nothing of oomph.

    torchrun --nproc-per-node 2 train_ranks.py ddp fsdp by-hand
    torchrun --nproc-per-node 4 train_ranks.py --backend nccl hsdp 2d pp
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WAYS = ["ddp", "fsdp", "by-hand", "fsdp1", "hsdp", "tp", "2d", "zero1", "pp"]
WAYS += ["cpu-offload"]  # FSDP2's


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ways", nargs="+", choices=WAYS, metavar="way")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--hold", default="", metavar="RANK:MIB", help="that it lacks")
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
    if way in ("by-hand", "pp"):
        return network
    if way == "zero1":
        return DistributedDataParallel(network)
    if way == "fsdp1":
        return FullyShardedDataParallel(network, device_id=torch.cuda.current_device())
    if way in ("hsdp", "2d"):
        shape = (2, dist.get_world_size() // 2)
        mesh = dist.init_device_mesh(device, shape, mesh_dim_names=("outer", "inner"))
    else:
        mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    if way in ("tp", "2d"):
        plan = {}
        for i in range(0, len(network), 2):
            plan |= {f"{i}.0": ColwiseParallel(), f"{i + 1}.0": RowwiseParallel()}
        parallelize_module(network, mesh["inner"] if way == "2d" else mesh, plan)
        # What comes out of a column is in parts, and gelu is of each number.
        if way == "tp":
            return network
        mesh = mesh["outer"]
    more = {"offload_policy": CPUOffloadPolicy()} if way == "cpu-offload" else {}
    for layer in network:
        fully_shard(layer, mesh=mesh, **more)
    return fully_shard(network, mesh=mesh, **more)


def train_stage(network: nn.Sequential, arguments: argparse.Namespace) -> list:
    """As stages of a pipeline, one for each rank: gives the losses, on the last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    each = len(network) // size
    part = nn.Sequential(*list(network)[rank * each : (rank + 1) * each])
    stage = PipelineStage(part, rank, size, torch.device("cuda", rank))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(part.parameters())
    torch.manual_seed(1)
    means = []
    for _ in range(arguments.steps):
        x = torch.randn(arguments.batch, arguments.width, device=arguments.device)
        losses: list[torch.Tensor] = []
        given = (x,) if rank == 0 else ()
        told = {"target": x, "losses": losses} if rank == size - 1 else {}
        schedule.step(*given, **told)
        optimizer.step()
        optimizer.zero_grad()
        means += [torch.stack(losses).mean().cpu()] if losses else []
    return means


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
    place = "cpu" if way == "cpu-offload" else arguments.device
    network = nn.Sequential(*layers).to(place)
    if way == "pp":
        return train_stage(network, arguments)
    network = distribute(network, way, arguments.device)
    if way == "zero1":
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW)
    else:
        optimizer = torch.optim.AdamW(network.parameters())
    # Ranks that share a batch get the same one.
    torch.manual_seed(1 + {"tp": 0, "2d": rank // 2}.get(way, rank))
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
    dist.init_process_group(arguments.backend)
    if arguments.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    short, _, mib = arguments.hold.partition(":")
    if short and dist.get_rank() == int(short):
        held = torch.empty(int(mib) << 20, dtype=torch.uint8, device="cuda")
    found = {way: train(way, arguments) for way in arguments.ways}
    if short and dist.get_rank() == int(short):
        del held
    if arguments.save:
        torch.save(found, f"{arguments.save}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
