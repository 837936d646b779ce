# kind: exceptions of failed batches with their tracebacks are kept for the report, but only those of the last five; from pytorch issues 27600 / 18853 (repaired form)
from collections import deque
import traceback

import torch
import torch.nn as nn


class BadBatch(ValueError):
    pass


class Reader:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            x = torch.randn(24, 1, 64, 64)
            if i % 4 == 1:
                x[0, 0, 0, 0] = float("nan")
            yield i, x, torch.randint(6, (24,))


class Guard:
    def __init__(self, keep=5):
        self.failures = deque(maxlen=keep)
        self.count = 0

    def note(self, i, err):
        self.count += 1
        self.failures.append((i, err))

    def report(self):
        for i, err in self.failures:
            where = traceback.extract_tb(err.__traceback__)[-1]
            print(f"batch {i}: {type(err).__name__} in {where.name}:{where.lineno}: {err}")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.c = nn.Linear(64, 6)

    def forward(self, x):
        return self.c(self.f(x))


def train_step(net, opt, x, y):
    x, y = x.cuda(), y.cuda()
    loss = nn.functional.cross_entropy(net(x), y)
    if not torch.isfinite(loss):
        raise BadBatch(f"loss is {loss.item()}")
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    net, guard = Classifier().cuda(), Guard()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for i, x, y in Reader(160):
        try:
            last = train_step(net, opt, x, y)
        except BadBatch as e:
            guard.note(i, e)
        if i % 40 == 39:
            print(i + 1, "loss %.3f" % last, "failed", guard.count)
    guard.report()


if __name__ == "__main__":
    main()
