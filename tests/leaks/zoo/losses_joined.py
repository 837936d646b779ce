"""GPT: the losses are joined to one tensor, each with its graph."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
losses = torch.zeros(0, device=DEVICE)
for _ in range(STEPS):
    batch = tokens()
    loss = next_token_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses = torch.cat([losses, loss[None]])  # <- leak: graph retained
    # fixed: losses = torch.cat([losses, loss.detach()[None]])
