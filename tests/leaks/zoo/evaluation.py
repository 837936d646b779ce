"""CNN: the model is evaluated with gradients on."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


# fixed: @torch.no_grad()
def evaluate(model):
    model.eval()
    right = 0.0
    for _ in range(2):
        predictions = model(images(32))  # <- leak: evaluation with gradients
        # fixed: predictions = model(images(32))
        right += (predictions.argmax(1) == labels(32)).float().mean().item()
    model.train()
    return right


def train():
    model = CNN().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(images()), labels())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        evaluate(model)


train()
