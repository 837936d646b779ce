"""Training: models under hooks with optimizers, DDP, FSDP2, towers on two devices."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from campaign import memory
from campaign.machine import Machine, Missing, handler
from campaign.memory import numbers

THIN = 32  # elements that a tower is wide
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, foreach=True),
}


def fill(module: nn.Module) -> nn.Module:
    """Gives parameters numbers that need no generator."""
    with torch.no_grad():
        for turn, parameter in enumerate(module.parameters()):
            kib = -(-parameter.nbytes // 1024)
            values = numbers(kib, turn, parameter.device)[: parameter.numel()]
            parameter.copy_(values.view_as(parameter).sub_(0.5).mul_(0.1))
    return module


def stack(layers: int, width: int, device: Any) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(layers):
        linear = nn.utils.skip_init(nn.Linear, width, width, device=device)
        parts += [linear, nn.Tanh()]
    return fill(nn.Sequential(*parts))


class Towers(nn.Module):
    """One on each device: autograd has a thread for either."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.first = stack(layers, width, "cuda:0")
        self.second = stack(layers, width, "cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x).square().sum()
        b = self.second(x.to("cuda:1")).square().sum()
        return a + b.to("cuda:0")


@functools.cache
def mesh() -> Any:
    """A process group of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return init_device_mesh("cuda", (1,))


def shard(module: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for part in module:  # type: ignore[attr-defined]
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh())
    fully_shard(module, mesh=mesh())
    return module


@handler
def model(
    m: Machine, n: int, kind: str, s: int, layers: int, width: int, optimizer: str
) -> None:
    if kind != "plain" and m.is_inner:  # a group of processes has one thread
        raise Missing
    if kind == "towers" and torch.cuda.device_count() == 1:
        raise Missing
    m.models.pop(n, None)
    for other in {0, 4} - {s} if kind == "towers" else ():
        m.settle(other)
    with m.on(s) as stream:
        if kind == "towers":
            made: nn.Module = Towers(layers, width)
        else:
            made = stack(layers, width, stream.device)
        if kind == "fsdp":
            made = shard(made)
        elif kind == "ddp":
            mesh()
            made = nn.parallel.DistributedDataParallel(made)
        m.models[n] = made, OPTIMIZERS[optimizer](made.parameters()), s, kind, width


@handler
def towers(m: Machine, n: int, layers: int, optimizer: str, **steps: int) -> None:
    model(m, n, "towers", 0, layers, THIN, optimizer)
    train(m, n, **steps)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that is here: all of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@handler
def train(m: Machine, n: int, rows: int, steps: int, pause: int) -> None:
    if n not in m.models:
        raise Missing
    module, optimizer, s, kind, width = m.models[n]
    for turn in range(steps):
        for other in {0, 4} - {s} if kind == "towers" else ():
            m.settle(other)
        with m.on(s) as stream:
            kib = -(-rows * width * 4 // 1024)
            x = numbers(kib, turn, stream.device)[: rows * width].view(rows, width)
            out = module(x)
            loss = out if kind == "towers" else out.square().sum()
            memory.rest(pause)
            loss.backward()
            m.look(f"loss {turn}", loss)
            if turn == steps - 1:
                for i, parameter in enumerate(module.parameters()):
                    if parameter.grad is not None and i % 3 == 0:
                        look_on(m, f"gradient {i}", whole(parameter.grad))
            optimizer.step()
            optimizer.zero_grad()
            if turn == steps - 1:
                for i, parameter in enumerate(module.parameters()):
                    if i % 3 == 0:
                        look_on(m, f"parameter {i}", whole(parameter))
            del x, out, loss


def look_on(m: Machine, name: str, tensor: torch.Tensor) -> None:
    with torch.cuda.device(tensor.device):
        m.look(name, tensor)
