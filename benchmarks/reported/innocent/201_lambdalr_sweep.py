# kind: a scheduler's lambda refers to the object that owns the scheduler, each finished trial is a reference cycle with its model and Adam state, which gc.collect() takes away with every tenth summary; after pytorch/pytorch issue 47589
import gc
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Space:
    width: tuple = (32, 64, 96)
    lr: tuple = (1e-3, 3e-3, 1e-2)
    decay: tuple = (0.8, 0.9, 1.0)

    def sample(self, rng):
        return {"width": rng.choice(self.width), "lr": rng.choice(self.lr), "decay": rng.choice(self.decay)}


class Trial:
    def __init__(self, number, params):
        self.number, self.params = number, params
        self.factor = 1.0
        w = params["width"]
        self.net = nn.Sequential(nn.Linear(20, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 2)).cuda()
        self.op = torch.optim.Adam(self.net.parameters(), lr=params["lr"])
        self.sc = torch.optim.lr_scheduler.LambdaLR(self.op, lr_lambda=lambda step: self.factor)

    def run(self, data, steps=4):
        x, y = data
        for _ in range(steps):
            loss = F.cross_entropy(self.net(x), y)
            self.op.zero_grad()
            loss.backward()
            self.op.step()
            self.factor *= self.params["decay"]
            self.sc.step()
        return loss.item()


class Sweep:
    def __init__(self, space, seed=0):
        self.space, self.rng = space, random.Random(seed)
        self.scores = []

    def summary(self):
        gc.collect()
        best = min(self.scores, key=lambda s: s[1])
        return f"{len(self.scores)} trials, best {best[1]:.4f} with {best[2]}"

    def trial(self, data):
        t = Trial(len(self.scores), self.space.sample(self.rng))
        self.scores.append((t.number, t.run(data), t.params))


def main():
    torch.manual_seed(0)
    x = torch.randn(256, 20, device="cuda")
    y = (x[:, 0] * x[:, 1] > 0).long()
    sweep = Sweep(Space())
    for i in range(1, 121):
        sweep.trial((x, y))
        if i % 10 == 0:
            print(sweep.summary())


if __name__ == "__main__":
    main()
