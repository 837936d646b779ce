"""Diffusion: a replay buffer that never has more than so many batches."""

from collections import deque

import torch
from models import DEVICE, STEPS, Denoiser, images
from torch.nn import functional

model = Denoiser().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
newest = deque(maxlen=50)
bounded, first, shown = [], [], []
for step in range(STEPS):
    clean, noise = images(), images()
    newest.append(clean)
    bounded.append(noise)
    if len(bounded) > 50:
        bounded.pop(0)
    if len(first) < 50:
        first.append(images())
    if step < 50 and STEPS > 1:
        shown.append(images())
    time = torch.rand(len(clean), 1, device=DEVICE)
    loss = functional.mse_loss(model(newest[0] + bounded[0], time), bounded[0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
