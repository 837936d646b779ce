# kind: reservoir of past samples in one tensor whose capacity doubles up to a maximum, later samples replace old ones in place; from online continual learning (experience replay) code
import random
import torch
from torch import nn
import torch.nn.functional as F


class Reservoir:
    def __init__(self, shape, maximum, device, start=128):
        self.maximum, self.seen, self.filled = maximum, 0, 0
        self.x = torch.zeros(start, *shape, device=device)
        self.y = torch.zeros(start, dtype=torch.long, device=device)
        self.rng = random.Random(0)

    def _grow(self):
        cap = min(2 * len(self.x), self.maximum)
        x, y = self.x.new_zeros(cap, *self.x.shape[1:]), self.y.new_zeros(cap)
        x[:self.filled], y[:self.filled] = self.x[:self.filled], self.y[:self.filled]
        self.x, self.y = x, y

    def offer(self, xs, ys):
        for x, y in zip(xs, ys):
            if self.filled < self.maximum:
                if self.filled == len(self.x):
                    self._grow()
                slot = self.filled
                self.filled += 1
            else:
                slot = self.rng.randint(0, self.seen)
            self.seen += 1
            if slot < self.maximum:
                self.x[slot] = x
                self.y[slot] = y

    def draw(self, n):
        i = torch.tensor([self.rng.randrange(self.filled) for _ in range(n)], device=self.x.device)
        return self.x[i], self.y[i]


class Head(nn.Linear):
    pass


def stream(n, bs):
    """The classes come one after the other."""
    for i in range(n):
        y = torch.full((bs,), i * 10 // n)
        yield torch.rand(bs, 3, 24, 24) + y[:, None, None, None] * 0.1, y


device = torch.device("cuda")
net = nn.Sequential(nn.Conv2d(3, 12, 5, 3), nn.ReLU(), nn.Flatten(), Head(12 * 49, 10)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
mem = Reservoir((3, 24, 24), maximum=1024, device=device)
for i, (x, y) in enumerate(stream(180, 16)):
    x, y = x.to(device), y.to(device)
    loss = F.cross_entropy(net(x), y)
    if mem.filled:
        mx, my = mem.draw(32)
        loss = loss + F.cross_entropy(net(mx), my)
    opt.zero_grad()
    loss.backward()
    opt.step()
    mem.offer(x, y)
    if i % 45 == 0:
        print(i, round(loss.item(), 3), f"memory {mem.filled}/{len(mem.x)}, seen {mem.seen}")
