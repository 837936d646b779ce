"""CNN: a hook is registered in each step, and none is ever removed."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


def train():
    model = CNN().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    seen = {}
    for _ in range(STEPS):

        def look(module, inputs, output):
            seen["body"] = output.detach()

        model.body.register_forward_hook(look)  # <- leak: hooks
        # fixed: handle = model.body.register_forward_hook(look)
        loss = functional.cross_entropy(model(images()), labels())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # fixed: handle.remove()


train()
