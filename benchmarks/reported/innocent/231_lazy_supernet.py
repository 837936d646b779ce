# kind: one-shot architecture search in which a candidate operation of a layer is made, with its Adam state, when a path first goes through it, there are 8 layers with 5 candidates and rare ones are drawn late; from single path one-shot NAS code (microsoft/nni) and questions on memory that creeps up during supernet training
import random
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(kernel, expand, width):
    inner = expand * width
    return nn.Sequential(
        nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner), nn.ReLU(),
        nn.Conv2d(inner, inner, kernel, padding=kernel // 2, groups=inner), nn.BatchNorm2d(inner), nn.ReLU(),
        nn.Conv2d(inner, width, 1), nn.BatchNorm2d(width))


CANDIDATES = {
    "k3e2": (8, partial(conv, 3, 2)),
    "k3e8": (4, partial(conv, 3, 8)),
    "k5e6": (3, partial(conv, 5, 6)),
    "k7e12": (1, partial(conv, 7, 12)),
    "skip": (2, lambda width: nn.Identity()),
}


class Choice(nn.Module):
    def __init__(self, width, on_new):
        super().__init__()
        self.width, self.on_new = width, on_new
        self.made = nn.ModuleDict()

    def forward(self, x, name):
        if name not in self.made:
            self.made[name] = CANDIDATES[name][1](self.width).to(x.device)
            self.on_new(self.made[name])
        return x + self.made[name](x)


class Supernet(nn.Module):
    def __init__(self, on_new, width=40, layers=8, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.layers = nn.ModuleList(Choice(width, on_new) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x, path):
        x = self.stem(x)
        for layer, name in zip(self.layers, path):
            x = layer(x, name)
        return self.head(x.mean((2, 3)))

    def size(self):
        return sum(len(layer.made) for layer in self.layers)


class Search:
    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.net = Supernet(self.joined).cuda()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.score = {}

    def joined(self, module):
        if params := list(module.parameters()):
            self.opt.add_param_group({"params": params})

    def path(self):
        names, weights = zip(*((n, w) for n, (w, _) in CANDIDATES.items()))
        return tuple(self.rng.choices(names, weights, k=len(self.net.layers)))

    def step(self, x, y):
        path = self.path()
        loss = F.cross_entropy(self.net(x, path), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        for i, name in enumerate(path):
            old = self.score.get((i, name), loss.item())
            self.score[i, name] = 0.9 * old + 0.1 * loss.item()
        return loss.item()

    def best(self):
        return [min((s, n) for (i, n), s in self.score.items() if i == layer)[1] for layer in range(len(self.net.layers))]


def batches(n, size=4):
    g = torch.Generator().manual_seed(1)
    colours = torch.rand(10, 3, 1, 1, generator=g)
    for _ in range(n):
        y = torch.randint(0, 10, (size,), generator=g)
        yield (colours[y] + 0.3 * torch.randn(size, 3, 32, 32, generator=g)).cuda(), y.cuda()


if __name__ == "__main__":
    torch.manual_seed(0)
    search = Search()
    for i, (x, y) in enumerate(batches(130)):
        loss = search.step(x, y)
        if i % 25 == 0:
            print(f"{i}: {search.net.size()} operations, loss {loss:.3f}")
    print("best path", search.best())
