"""GAN: two optimizers, gradients in places where only one of them sets them back."""

import torch
from models import DEVICE, STEPS, images
from torch import nn
from torch.nn import functional

maker = nn.Conv2d(3, 3, 3, padding=1).to(DEVICE)
judge = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1))
judge = judge.to(DEVICE)
judge(images())
makers = torch.optim.Adam(maker.parameters())
judges = torch.optim.Adam(judge.parameters())
for _ in range(STEPS):
    made = maker(images())
    judges.zero_grad(set_to_none=False)
    (functional.softplus(judge(made.detach())) - judge(images())).mean().backward()
    judges.step()
    makers.zero_grad(set_to_none=False)
    functional.softplus(-judge(made)).mean().backward()
    makers.step()
