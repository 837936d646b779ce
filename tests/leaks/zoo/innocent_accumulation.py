"""GPT: gradients of several batches are added up before each step, and set to zero."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    total = torch.zeros((), device=DEVICE)
    for _ in range(3):
        batch = tokens(batch=2)
        loss = next_token_loss(model(batch), batch) / 3
        loss.backward()
        total += loss.detach()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad.data.zero_()
