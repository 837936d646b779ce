"""CNN: batches are made ahead, two at a time, and the last outputs are kept."""

from collections import deque

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


def ahead(count, depth=2):
    waiting = deque()
    for _ in range(count):
        waiting.append((images(), labels()))
        if len(waiting) > depth:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def train():
    model = CNN().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    last = None
    for pictures, classes in ahead(STEPS):
        predictions = model(pictures)
        loss = functional.cross_entropy(predictions, classes)
        if last is not None:
            loss = loss + 0.1 * (predictions.mean() - last.mean()).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = predictions.detach()


train()
