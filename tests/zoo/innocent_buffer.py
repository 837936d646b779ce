"""Diffusion: a replay buffer that never has more than so many batches."""

from collections import deque

import torch
from models import DEVICE, STEPS, Denoiser, images
from torch.nn import functional

model = Denoiser().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
newest = deque(maxlen=50)
bounded = []
for _ in range(STEPS):
    clean, noise = images(), images()
    newest.append(clean)
    bounded.append(noise)
    if len(bounded) > 50:
        bounded.pop(0)
    time = torch.rand(len(clean), 1, device=DEVICE)
    loss = functional.mse_loss(model(newest[0] + bounded[0], time), bounded[0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
