"""Trains the GPT of train_gpt.py, and leaks: it keeps losses with their graphs.

What oomph says of it stands in docs/leaks.md.

    python train_leaking.py --layers 4 --batch 4 --block 256
"""

from __future__ import annotations

import torch
from train_gpt import GPT, Batches, parse_arguments


def main() -> None:
    arguments = parse_arguments()
    batches = Batches(arguments)
    model = GPT(arguments).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    curve = []
    for _ in range(arguments.steps):
        loss = model(*batches.next())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(model(*batches.next()))


if __name__ == "__main__":
    main()
