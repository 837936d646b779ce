"""GPT: what the model says is kept, to be looked at later."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
outputs = []
for _ in range(STEPS):
    batch = tokens()
    logits = model(batch)
    loss = next_token_loss(logits, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(logits)  # <- leak: outputs retained
    # fixed: outputs.append(logits.detach().cpu())
