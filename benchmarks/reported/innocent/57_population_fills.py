# kind: population of a neuro-evolution run grows by one trained individual per round until it has 20 members, then the weakest makes room; from population based training repositories
import copy
import random

import torch
import torch.nn as nn


class Policy(nn.Module):
    def __init__(self, obs=30, act=5, h=160):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, act))

    def forward(self, x):
        return self.net(x)


class Individual:
    def __init__(self, policy, lr):
        self.policy, self.lr, self.score = policy, lr, float("-inf")
        self.opt = torch.optim.Adam(policy.parameters(), lr=lr)

    def child(self, rng):
        policy = copy.deepcopy(self.policy)
        with torch.no_grad():
            for p in policy.parameters():
                p.add_(0.02 * torch.randn_like(p))
        return Individual(policy, self.lr * rng.choice([0.8, 1.0, 1.25]))

    def train(self, env, steps=2):
        for _ in range(steps):
            x, best = env()
            loss = nn.functional.cross_entropy(self.policy(x), best)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.score = -loss.item()


class Population:
    def __init__(self, size, seed=0):
        self.size, self.rng, self.members = size, random.Random(seed), []

    def add(self, ind):
        self.members.append(ind)
        if len(self.members) > self.size:
            self.members.remove(min(self.members, key=lambda m: m.score))

    def tournament(self, k=3):
        return max(self.rng.sample(self.members, min(k, len(self.members))), key=lambda m: m.score)


torch.manual_seed(0)
goal = torch.randn(30, 5, device="cuda")


def env():
    x = torch.randn(64, 30, device="cuda")
    return x, (x @ goal).argmax(1)


pop = Population(20)
first = Individual(Policy().cuda(), 2e-3)
first.train(env)
pop.add(first)
for rnd in range(100):
    kid = pop.tournament().child(pop.rng)
    kid.train(env)
    pop.add(kid)
    if rnd % 20 == 0:
        print("round", rnd, "members", len(pop.members), "best %.3f" % max(m.score for m in pop.members))
