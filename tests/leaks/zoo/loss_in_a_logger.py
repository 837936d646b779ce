"""Diffusion: a logger is handed the loss itself, not its value."""

import torch
from models import DEVICE, STEPS, Denoiser, images
from torch.nn import functional


class Logger:
    def __init__(self):
        self.history = {"loss": [], "step": []}

    def log(self, **values):
        for name, value in values.items():
            self.history[name].append(value)  # <- leak: loss kept
            # fixed: self.history[name].append(value)


class Trainer:
    def __init__(self):
        self.model = Denoiser().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.logger = Logger()

    def step(self, number):
        clean, noise = images(), images()
        time = torch.rand(len(clean), 1, device=DEVICE)
        loss = functional.mse_loss(self.model(clean + noise, time), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.logger.log(loss=loss, step=number)  # wrong
        # fixed: self.logger.log(loss=loss.item(), step=number)


trainer = Trainer()
for number in range(STEPS):
    trainer.step(number)
