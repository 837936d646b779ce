# kind: population-based training whose members point to their parents; in the manner of a GitHub discussion "why does PBT on one GPU use more memory each generation, population is fixed"
from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class Member:
    net: nn.Module
    lr: float
    score: float = -1e9
    parent: Member | None = field(default=None, repr=False)
    born: int = 0

    def depth(self):
        n, m = 0, self
        while m.parent is not None:
            n, m = n + 1, m.parent
        return n


class Population:
    def __init__(self, size, factory):
        self.members = [Member(factory(), 10 ** random.uniform(-3, -1.5)) for _ in range(size)]

    def train(self, task, steps):
        for m in self.members:
            opt = torch.optim.SGD(m.net.parameters(), lr=m.lr, momentum=0.9)
            for _ in range(steps):
                x, y = task()
                loss = nn.functional.mse_loss(m.net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            m.net.zero_grad(set_to_none=True)
            m.score = -loss.item()

    def exploit_and_explore(self, gen):
        self.members.sort(key=lambda m: m.score, reverse=True)
        best = self.members[0]
        child = Member(copy.deepcopy(best.net), best.lr * random.choice([0.8, 1.25]), born=gen)
        child.parent = best  # ALSO
        heir = Member(copy.deepcopy(best.net), best.lr, best.score, parent=best, born=gen)  # LEAK
        self.members[0] = heir
        self.members[-1] = child


def factory():
    return nn.Sequential(nn.Linear(32, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, 4)).cuda()


def main():
    random.seed(0)
    torch.manual_seed(0)
    w = torch.randn(32, 4, device="cuda") * 0.2

    def task():
        x = torch.randn(64, 32, device="cuda")
        return x, torch.sin(x @ w)
    pop = Population(4, factory)
    for gen in range(70):
        pop.train(task, 3)
        pop.exploit_and_explore(gen)
    print("generations behind the best:", max(m.depth() for m in pop.members))


main()
