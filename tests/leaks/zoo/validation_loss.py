"""GPT: the loss on other data is kept with all that its graph saved."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
curve = {}
for step in range(STEPS):
    batch = tokens()
    loss = next_token_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    other = tokens()  # wrong
    curve[step] = next_token_loss(model(other), other)  # <- leak: loss kept
    # fixed: with torch.no_grad():
    # fixed:     other = tokens()
    # fixed:     curve[step] = next_token_loss(model(other), other).item()
