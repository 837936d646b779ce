"""GPT: sequences get longer with every step."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    batch = tokens(length=64 + 16 * step)
    logits = model(batch)
    loss = next_token_loss(logits, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
