"""Diffusion: a module's list of noise, of which every function may make more."""

import torch
from models import DEVICE, STEPS, Denoiser, images
from torch.nn import functional

DRAWN = []


def noise_like(clean):
    DRAWN.append(torch.randn_like(clean))  # <- leak: global
    return DRAWN[-1]  # wrong
    # fixed: if not DRAWN:
    # fixed:     DRAWN.append(torch.randn_like(clean))
    # fixed: return DRAWN[0]


def train():
    model = Denoiser().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        clean = images()
        noise = noise_like(clean)
        time = torch.rand(len(clean), 1, device=DEVICE)
        loss = functional.mse_loss(model(clean + noise, time), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
