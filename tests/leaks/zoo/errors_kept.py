"""CNN: bad batches are skipped, and their errors kept with their tracebacks."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


def check(predictions):
    spread = predictions.detach() * 2
    if spread.shape[0] != 4:
        raise ValueError("a batch of an odd size")


def train():
    model = CNN(classes=500).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = []
    for _ in range(STEPS):
        try:
            check(model(images()))
        except ValueError as error:
            skipped.append(error)  # <- leak: traceback
            # fixed: skipped.append(str(error))
        loss = functional.cross_entropy(model(images(4)), labels(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
