"""Trains a Llama under FSDP2, as people write it: each rank has a part of everything.

A plain PyTorch script: it knows nothing of oomph. The defaults are small;
``--width 8192 --layers 80 --heads 64 --key-heads 8 --hidden 28672 --vocabulary 128256``
is Llama 3 70B.

    torchrun --nproc-per-node 8 train_fsdp.py
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--key-heads", type=int, default=4, help="of keys and values")
    parser.add_argument("--hidden", type=int, default=688, help="width of the MLPs")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--block", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences of each rank")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    return parser.parse_args()


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions: pairs of numbers turn by an angle that grows with the place."""
    tokens, size = x.shape[-2:]
    places = torch.arange(tokens, device=x.device, dtype=torch.float32)
    speeds = 500000 ** -(torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.outer(places, speeds)
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Block(nn.Module):
    """Causal attention with fewer heads of keys and values, and a gated MLP."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        super().__init__()
        width, size = wanted.width, wanted.width // wanted.heads
        self.size = size
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, wanted.heads * size, bias=False)
        self.k = nn.Linear(width, wanted.key_heads * size, bias=False)
        self.v = nn.Linear(width, wanted.key_heads * size, bias=False)
        self.out = nn.Linear(wanted.heads * size, width, bias=False)
        self.gate = nn.Linear(width, wanted.hidden, bias=False)
        self.up = nn.Linear(width, wanted.hidden, bias=False)
        self.down = nn.Linear(wanted.hidden, width, bias=False)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=True
        )
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm_1(x))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Tokens to the logits of the next ones."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(wanted.vocabulary, wanted.width)
        self.blocks = nn.ModuleList(Block(wanted) for _ in range(wanted.layers))
        self.norm = nn.RMSNorm(wanted.width)
        self.head = nn.Linear(wanted.width, wanted.vocabulary, bias=False)
        self.recomputes = wanted.checkpoint

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recomputes:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x))


def make_model(wanted: argparse.Namespace) -> nn.Module:
    """A model of which each rank has a part; no rank ever has all of it."""
    with torch.device("meta"):
        model = Llama(wanted)
    types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    policy = MixedPrecisionPolicy(**types if wanted.amp else {})
    mesh = dist.init_device_mesh(wanted.device, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=wanted.device)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1)
            else:
                parameter.normal_(std=0.02)
    return model


def main() -> None:
    wanted = parse_arguments()
    if wanted.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(wanted.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model(wanted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = Path(sysconfig.get_path("stdlib"), "argparse.py").read_bytes()
    tokens = torch.tensor(list(text))
    generator = torch.Generator().manual_seed(1 + rank)
    for step in range(wanted.steps):
        began = time.perf_counter()
        shape = (wanted.batch, wanted.block + 1)
        last = max(1, len(tokens) - wanted.block - 1)
        starts = torch.randint(last, shape[:1], generator=generator)
        places = starts[:, None] + torch.arange(shape[1])
        batch = tokens[places % len(tokens)].to(wanted.device)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            ms = (time.perf_counter() - began) * 1e3
            mean /= size
            print(f"step {step} loss {mean.item():.5f} ({ms:.0f} ms)", flush=True)
    if wanted.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"rank {rank} of {size}: peak {peak:.3f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
