"""CNN: an exponential average of the parameters, begun late; a fixed evaluation set."""

import copy

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional

model = CNN().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters())
average = None
for step in range(STEPS):
    loss = functional.cross_entropy(model(images()), labels())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 2:
        average = copy.deepcopy(model).requires_grad_(False)
    elif average is not None:
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new.detach(), 0.1)
