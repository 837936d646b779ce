"""Trains a residual network with the habits that training scripts have.

A plain PyTorch script: it knows nothing of oomph.

    python train_habits.py --accumulate 2 --keep-gradients --empty-cache
"""

from __future__ import annotations

import argparse
import contextlib
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--checkpoint", choices=("reentrant", "plain"))
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    parser.add_argument("--keep-gradients", action="store_true", help="zero them")
    parser.add_argument("--empty-cache", action="store_true", help="after each step")
    parser.add_argument("--evaluate", action="store_true", help="after each step")
    parser.add_argument("--pool", action="store_true", help="inputs in a MemPool")
    parser.add_argument("--profile", action="store_true", help="with its memory")
    parser.add_argument("--fraction", type=float, help="of the card, to stay within")
    parser.add_argument("--threads", type=int, default=0, help="each with a stream")
    return parser.parse_args()


class Network(nn.Module):
    """Layers, each added to its input."""

    def __init__(self, layers: int, width: int, recompute: str | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.recompute and self.training:
                reentrant = self.recompute == "reentrant"
                y = checkpoint(self.compute, layer, x, use_reentrant=reentrant)
            else:
                y = self.compute(layer, x)
            x = x + y
        return x

    @staticmethod
    def compute(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.relu(layer(x)) + 1)


class Inputs:
    """Batches, in a pool of their own if wanted."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.shape = arguments.batch, arguments.width
        self.pool = torch.cuda.MemPool() if arguments.pool else None

    def next(self) -> torch.Tensor:
        pooled = (
            torch.cuda.use_mem_pool(self.pool)
            if self.pool is not None
            else contextlib.nullcontext()
        )
        with pooled:
            return torch.randn(self.shape, device="cuda", requires_grad=True)


@torch.no_grad()
def evaluate(network: Network, inputs: Inputs) -> float:
    network.eval()
    losses = [F.mse_loss(network(x), x).item() for x in (inputs.next(), inputs.next())]
    network.train()
    return sum(losses) / len(losses)


def train(arguments: argparse.Namespace) -> None:
    network = Network(arguments.layers, arguments.width, arguments.checkpoint).cuda()
    optimizer = torch.optim.AdamW(network.parameters())
    inputs = Inputs(arguments)
    for step in range(arguments.steps):
        total = 0.0
        for _ in range(arguments.accumulate):
            x = inputs.next()
            loss = F.mse_loss(network(x), x.detach()) / arguments.accumulate
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not arguments.keep_gradients)
        if arguments.evaluate:
            total = evaluate(network, inputs)
        if arguments.empty_cache:
            torch.cuda.empty_cache()
        print(f"step {step} loss {total:.6f}", flush=True)


def train_in_threads(arguments: argparse.Namespace) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                train(arguments)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(arguments.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    if arguments.fraction is not None:
        torch.cuda.set_per_process_memory_fraction(arguments.fraction)
    profile = (
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        if arguments.profile
        else contextlib.nullcontext()
    )
    with profile:
        if arguments.threads:
            train_in_threads(arguments)
        else:
            train(arguments)


if __name__ == "__main__":
    main()
