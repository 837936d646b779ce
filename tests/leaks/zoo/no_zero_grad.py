"""GPT: gradients are never set back."""

import torch
from models import DEVICE, GPT, STEPS, next_token_loss, tokens

model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    batch = tokens()
    loss = next_token_loss(model(batch), batch)
    # fixed: optimizer.zero_grad(set_to_none=False)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # <- leak: zero_grad missing
    # fixed: optimizer.step()
