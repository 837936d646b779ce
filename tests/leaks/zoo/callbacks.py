"""GPT: functions to be called at the end use the outputs that they were made with."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens


def summary(logits):
    # fixed: spread = float(logits.float().std())
    def show():
        return float(logits.float().std())  # wrong
        # fixed: return spread

    return show


def train():
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    at_end = []
    for _ in range(STEPS):
        batch = tokens()
        logits = model(batch)
        at_end.append(summary(logits.detach()))  # <- leak: closure
        # fixed: at_end.append(summary(logits.detach()))
        loss = next_token_loss(logits, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [show() for show in at_end]


train()
