"""CNN: the losses are kept for a plot, each with its graph."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


def train():
    model = CNN().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images()), labels())
        losses.append(loss)  # <- leak: loss kept
        # fixed: losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses


train()
