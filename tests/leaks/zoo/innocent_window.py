"""GPT: the last logits are kept in one tensor, of bounded length."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
kept = torch.zeros(0, 64, 512, device=DEVICE)
first = torch.zeros(0, 64, 512, device=DEVICE)
recent = torch.zeros(0, 64, 512, device=DEVICE)
for _ in range(STEPS):
    batch = tokens()
    logits = model(batch)
    loss = next_token_loss(logits, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept = torch.cat([kept, logits.detach()])[-100:]
    if first.shape[0] < 100:
        first = torch.cat([first, logits.detach()])
    recent = torch.cat([recent, logits.detach()])
    if len(recent) > 100:
        recent = recent[-100:]
