# kind: resampling kernels remembered for each speed factor; why it is none: the factors lie on a grid of 21 values and are all seen early
import math
import random
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

RATE = 100


@lru_cache(maxsize=None)
def kernel(percent):
    new = max(1, RATE * 100 // percent)
    t = (torch.arange(-30, 30 + RATE, device="cuda")[None, :] / RATE
         - torch.arange(new, device="cuda")[:, None] / new) * min(RATE, new)
    return (torch.sinc(t) * torch.cos(t.clamp(-8, 8) * math.pi / 16) ** 2)[:, None]


def perturb(wav):
    k = kernel(random.randrange(90, 111))
    return F.conv1d(F.pad(wav, (30, 30 + RATE)), k, stride=RATE).transpose(1, 2).flatten(1)[:, None]


def main():
    random.seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 16, 50, 10), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(),
                        nn.Linear(128, 5)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(8):
        for _ in range(30):
            loss = F.cross_entropy(net(perturb(torch.randn(8, 1, 4000, device="cuda"))),
                                   torch.randint(0, 5, (8,), device="cuda"))
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item(), kernel.cache_info().currsize)


main()
