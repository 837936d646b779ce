# kind: successive halving starts with 16 models that join one by one, the worse half is dropped at each rung with its optimizer; from ASHA / Hyperband implementations (ray tune, optuna) and memory questions about them
from dataclasses import dataclass, field
import random

import torch
import torch.nn as nn


@dataclass
class Trial:
    number: int
    width: int
    lr: float
    model: nn.Module = None
    opt: torch.optim.Optimizer = None
    losses: list = field(default_factory=list)

    def launch(self):
        self.model = nn.Sequential(nn.Linear(20, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, 1)).cuda()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=self.lr)

    def train(self, steps, source):
        for _ in range(steps):
            x, y = source(32)
            loss = nn.functional.huber_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.losses.append(loss.item())
        return sum(self.losses[-3:]) / 3

    def stop(self):
        self.model = self.opt = None


class Friedman:
    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, n):
        x = torch.rand(n, 20, generator=self.g)
        y = 10 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        return x.cuda(), (y[:, None] / 10).cuda()


def successive_halving(trials, source, base=3, eta=2):
    alive, rung = trials, 0
    while True:
        scores = {}
        for t in alive:
            if t.model is None:
                t.launch()
            scores[t.number] = t.train(base * eta ** rung if len(alive) > 1 else 40, source)
        alive = sorted(alive, key=lambda t: scores[t.number])
        best = alive[0]
        print(f"rung {rung}: {len(alive)} trials, best {best.number} (width {best.width}, lr {best.lr:.1e}) {scores[best.number]:.4f}")
        if len(alive) == 1:
            return best
        cut = len(alive) // eta
        for t in alive[cut:]:
            t.stop()
        alive, rung = alive[:cut], rung + 1


random.seed(1)
torch.manual_seed(1)
trials = [Trial(i, random.choice([128, 192, 256]), 10 ** random.uniform(-4, -2)) for i in range(16)]
winner = successive_halving(trials, Friedman())
print("winner", winner.number, "trained for", len(winner.losses), "steps")
