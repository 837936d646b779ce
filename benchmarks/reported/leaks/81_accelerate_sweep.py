# kind: one Accelerator prepares the model and optimizer of every candidate of an architecture sweep and never lets go of them; from huggingface/accelerate issue 84 and PR 739
import random

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build(width, depth):
    layers = [nn.Linear(48, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    layers.append(nn.Linear(width, 6))
    return nn.Sequential(*layers)


def make_loader(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(320, 48, generator=g)
    y = torch.randint(0, 6, (320,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


def evaluate_candidate(accelerator, width, depth, lr):
    model = build(width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, make_loader(depth))  # LEAK
    criterion = nn.CrossEntropyLoss()
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total / len(loader)


def main():
    random.seed(3)
    torch.manual_seed(3)
    accelerator = Accelerator()
    table = []
    for trial in range(26):
        width = random.choice([96, 128, 160])
        depth = random.choice([1, 2, 3])
        lr = 10 ** random.uniform(-4, -2)
        score = evaluate_candidate(accelerator, width, depth, lr)
        table.append((score, trial, width, depth, lr))
    table.sort()


if __name__ == "__main__":
    main()
