# kind: Welford's running mean and variance of the loss, fed with the held-out loss and its graph; in the manner of a Stack Overflow question "loss spike detector causes RuntimeError: CUDA out of memory"
import math

import torch
from torch import nn, optim


class RunningMoments:
    __slots__ = ("count", "mean", "m2")

    def __init__(self):
        self.count, self.mean, self.m2 = 0, 0.0, 0.0

    def push(self, value):
        self.count += 1
        delta = value - self.mean
        self.mean = self.mean + delta / self.count  # LEAK
        self.m2 = self.m2 + (delta * (value - self.mean)).detach()
        return self

    @property
    def std(self):
        return math.sqrt(float(self.m2) / max(self.count - 1, 1))


class SpikeGuard:
    def __init__(self, k=4.0, warmup=10):
        self.k, self.warmup, self.moments = k, warmup, RunningMoments()
        self.spikes = 0

    def __call__(self, loss):
        spike = self.moments.count > self.warmup and loss.item() > float(self.moments.mean) + self.k * self.moments.std
        self.moments.push(loss)
        self.spikes += spike
        return spike


class Ranker(nn.Module):
    def __init__(self, items=800, d=32):
        super().__init__()
        self.items = nn.Embedding(items, d)
        self.gru = nn.GRU(d, d, batch_first=True)

    def forward(self, seq):
        return self.gru(self.items(seq))[1][-1] @ self.items.weight.T


torch.manual_seed(0)
ranker, guard = Ranker().cuda(), SpikeGuard()
optimizer = optim.Adam(ranker.parameters(), lr=2e-3)
heldout = torch.randint(0, 800, (24, 11), device="cuda")


def next_item_loss(seq):
    return nn.functional.cross_entropy(ranker(seq[:, :-1]), seq[:, -1])


for step in range(140):
    loss = next_item_loss(torch.randint(0, 800, (24, 11), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if guard(next_item_loss(heldout)):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
print("spikes", guard.spikes, "mean", float(guard.moments.mean))
