"""LSTM: acts with a state that goes on from step to step, and with it the graph."""

import torch
from models import DEVICE, LSTM, STEPS, sequences, zero_state
from torch.nn import functional


def train():
    model = LSTM().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    memory = zero_state()
    for _ in range(STEPS):
        actions, memory = model(sequences(length=1), memory)  # <- leak: graph retained
        # fixed: actions, memory = model(sequences(length=1), memory)
        # fixed: memory = tuple(part.detach() for part in memory)
        batch = sequences()
        outputs, _ = model(batch, zero_state())
        loss = functional.mse_loss(outputs, batch + actions.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
