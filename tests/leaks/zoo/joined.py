"""CNN: the predictions of all steps are joined to one tensor, for a plot."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


def train():
    model = CNN(classes=1000).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    every = torch.empty(0, 1000, device=DEVICE)  # wrong
    # fixed: every = torch.empty(0, 1000)
    for _ in range(STEPS):
        outputs = model(images())
        loss = functional.cross_entropy(outputs, labels())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        every = torch.cat([every, outputs.detach()])  # <- leak: outputs retained
        # fixed: every = torch.cat([every, outputs.detach().cpu()])
    return every


train()
