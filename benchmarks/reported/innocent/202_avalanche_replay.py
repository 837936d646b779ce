# kind: a class-balanced replay memory is filled after the first experience and its share per class shrinks as classes arrive, batches are twice as large from then on because replayed samples are added; after ContinualAI/avalanche issue 1106
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


class ReservoirBuffer:
    def __init__(self, max_size):
        self.max_size = max_size
        self.x, self.key = None, None

    def update(self, x):
        key = torch.rand(len(x), device=x.device)
        if self.x is not None:
            x, key = torch.cat([self.x, x]), torch.cat([self.key, key])
        self._keep(x, key)

    def resize(self, n):
        self.max_size = n
        if self.x is not None:
            self._keep(self.x, self.key)

    def _keep(self, x, key):
        order = key.argsort(descending=True)[:self.max_size]
        self.x, self.key = x[order].clone(), key[order].clone()


class ClassBalancedBuffer:
    def __init__(self, mem_size):
        self.mem_size, self.groups = mem_size, {}

    def update(self, samples):
        for c in samples:
            self.groups.setdefault(c, ReservoirBuffer(0))
        share = self.mem_size // len(self.groups)
        for c, g in self.groups.items():
            g.resize(share)
            if c in samples:
                g.update(samples[c])

    def draw(self, n):
        xs, ys = [], []
        per = max(1, n // len(self.groups))
        for c, g in self.groups.items():
            idx = torch.randint(0, len(g.x), (per,), device=g.x.device)
            xs.append(g.x[idx])
            ys.append(torch.full((per,), c, device=g.x.device))
        return torch.cat(xs), torch.cat(ys)

    def __len__(self):
        return sum(len(g.x) for g in self.groups.values())


class ReplayPlugin:
    def __init__(self, mem_size=1200):
        self.storage = ClassBalancedBuffer(mem_size)

    def before_training_iteration(self, strategy):
        if not self.storage.groups:
            return
        x, y = self.storage.draw(len(strategy.mb_x))
        strategy.mb_x = torch.cat([strategy.mb_x, x])
        strategy.mb_y = torch.cat([strategy.mb_y, y])

    def after_training_exp(self, strategy):
        samples = defaultdict(list)
        for x, y in strategy.seen[-12:]:
            for c in y.unique().tolist():
                samples[c].append(x[y == c])
        self.storage.update({c: torch.cat(v) for c, v in samples.items()})


class Naive:
    def __init__(self, model, plugins):
        self.model, self.plugins = model, plugins
        self.opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.mb_x = self.mb_y = None
        self.seen = []

    def _fire(self, name):
        for p in self.plugins:
            if hasattr(p, name):
                getattr(p, name)(self)

    def train(self, experience):
        for x, y in experience:
            self.mb_x, self.mb_y = x.cuda(), y.cuda()
            self.seen = (self.seen + [(self.mb_x, self.mb_y)])[-12:]
            self._fire("before_training_iteration")
            loss = F.cross_entropy(self.model(self.mb_x), self.mb_y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self._fire("after_training_exp")
        self.seen = []
        return loss.item()


def experience(classes, iterations):
    for _ in range(iterations):
        y = torch.tensor(classes)[torch.randint(0, len(classes), (64,))]
        yield torch.randn(64, 3, 16, 16) + y[:, None, None, None] * 0.2, y


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()
    replay = ReplayPlugin()
    strategy = Naive(model, [replay])
    for k, n in enumerate([20, 20, 20, 20, 90]):
        loss = strategy.train(experience([2 * k, 2 * k + 1], n))
        print(f"experience {k}: loss {loss:.3f}, memory {len(replay.storage)}")


if __name__ == "__main__":
    main()
