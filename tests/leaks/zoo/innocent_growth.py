"""GPT: what is generated gets longer with every step, from a new tensor each time."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())


def generate(batch, count):
    for _ in range(count):
        with torch.no_grad():
            following = model(batch)[:, -1].argmax(-1, keepdim=True)
        batch = torch.cat([batch, following], dim=1)
    return batch


for step in range(STEPS):
    batch = generate(tokens(length=16), 64 * step)
    start = tokens(length=16)
    for _ in range(64 * step):
        start = torch.cat([start, start[:, -1:]], dim=1)
    loss = next_token_loss(model(batch), batch) + next_token_loss(model(start), start)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
