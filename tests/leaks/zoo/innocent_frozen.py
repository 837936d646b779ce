"""CNN: trained in evaluation mode, with a frozen part, and an attack on the inputs."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional

model = CNN().to(DEVICE)
model.stem.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):
    model.eval()
    pictures = images().requires_grad_()
    attacked = functional.cross_entropy(model(pictures), labels())
    (gradient,) = torch.autograd.grad(attacked, pictures)
    model.train()
    model.norm.eval()
    moved = (pictures + gradient.sign()).detach()
    loss = functional.cross_entropy(model(moved), labels())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
