"""Diffusion: a metric joins the noise of all steps, and nobody resets it."""

import torch
from models import DEVICE, STEPS, Denoiser, images
from torch.nn import functional


class Metric:
    def __init__(self):
        self.past = None

    # fixed: def reset(self):
    # fixed:     self.past = None

    def update(self, x):
        if self.past is None:
            self.past = x
        else:
            self.past = torch.cat((self.past, x)).detach()  # <- leak: outputs retained
            # fixed: self.past = torch.cat((self.past, x)).detach()


def train(metric):
    model = Denoiser().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _step in range(STEPS):
        # fixed: if _step % 100 == 99:
        # fixed:     metric.reset()
        noise = images()
        foreseen = model(images() + noise, torch.rand(8, 1, device=DEVICE))
        loss = functional.mse_loss(foreseen, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(foreseen.detach())


train(Metric())
