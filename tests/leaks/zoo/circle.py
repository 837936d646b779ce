"""LSTM: each result refers to itself; the collector is off, as it costs time."""

import gc

import torch
from models import DEVICE, LSTM, STEPS, sequences, zero_state
from torch.nn import functional


class Result:
    def __init__(self, outputs):
        self.outputs = outputs
        self.describe = lambda: str(self.outputs.shape)  # <- leak: cycle

    # fixed: def describe(self):
    # fixed:     return str(self.outputs.shape)


def train():
    model = LSTM().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        batch = sequences()
        outputs, _ = model(batch, zero_state())
        result = Result(outputs.detach())
        loss = functional.mse_loss(outputs, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert result.describe()


gc.disable()
train()
gc.enable()
