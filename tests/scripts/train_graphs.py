"""Trains a small network with its steps captured in CUDA graphs that share a pool.

A plain PyTorch script: it knows nothing of oomph.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 32])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


class Captured:
    """A step of training for one size of batch, captured once and replayed."""

    def __init__(self, model: nn.Module, optimizer, batch: int, width: int, pool):
        self.model, self.optimizer = model, optimizer
        self.inputs = torch.zeros(batch, width, device="cuda")
        self.targets = torch.zeros(batch, width, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.differentiate()  # libraries take what they need before the capture
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.loss = self.differentiate()
            optimizer.step()

    def differentiate(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(self.model(self.inputs), self.targets)
        loss.backward()
        return loss

    def step(self, inputs: torch.Tensor) -> float:
        self.inputs.copy_(inputs)
        self.targets.copy_(inputs.flip(1))
        self.graph.replay()
        return self.loss.item()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    width = arguments.width
    model = nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pool = torch.cuda.graph_pool_handle()
    captured = {
        batch: Captured(model, optimizer, batch, width, pool)
        for batch in arguments.batches
    }
    for step in range(arguments.steps):
        batch = arguments.batches[step % len(arguments.batches)]
        inputs = torch.randn(batch, width)
        print(f"step {step} loss {captured[batch].step(inputs):.6f}", flush=True)


if __name__ == "__main__":
    main()
