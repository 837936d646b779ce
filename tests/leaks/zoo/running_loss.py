"""CNN: the running total adds up losses, and with them their graphs."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


def train():
    model = CNN().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(images()), labels())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # <- leak: loss kept
        # fixed: total += loss.item()
    return float(total)


train()
