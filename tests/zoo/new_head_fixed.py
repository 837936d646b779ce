"""GPT: the model gets a new head before the optimizer was made."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens
from torch import nn

model = GPT().to(DEVICE)
model.head = nn.Linear(64, 512).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    batch = tokens()
    loss = next_token_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
