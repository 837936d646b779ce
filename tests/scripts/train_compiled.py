"""Trains a network that torch.compile compiled.

A plain PyTorch script: it knows nothing of oomph.

    python train_compiled.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

BATCH, WIDTH = 8192, 512


def main() -> None:
    torch.manual_seed(1337)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        for _ in range(3)
    ]
    network = nn.Sequential(*layers).cuda()
    compiled = torch.compile(lambda x: F.mse_loss(network(x), x))
    optimizer = torch.optim.AdamW(network.parameters())
    for step in range(4):
        loss = compiled(torch.randn(BATCH, WIDTH, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
