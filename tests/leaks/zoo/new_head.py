"""GPT: the model gets a new head after the optimizer was made."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens
from torch import nn

model = GPT().to(DEVICE)
# fixed: model.head = nn.Linear(64, 512).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
model.head = nn.Linear(64, 512).to(DEVICE)  # <- leak: replaced parameters
for _ in range(STEPS):
    batch = tokens()
    loss = next_token_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
