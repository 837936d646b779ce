"""Diffusion: the graph is kept though nothing goes back through it again."""

import torch
from models import DEVICE, STEPS, Denoiser, images
from torch.nn import functional

model = Denoiser().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    clean, noise = images(), images()
    time = torch.rand(len(clean), 1, device=DEVICE)
    predicted = model(clean + noise, time)
    loss = functional.mse_loss(predicted, noise)
    penalty = predicted.square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    penalty.backward(retain_graph=True)  # <- leak: retain_graph
    # fixed: penalty.backward()
    optimizer.step()
