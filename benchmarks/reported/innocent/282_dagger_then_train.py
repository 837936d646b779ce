# kind: imitation learning which aggregates a dataset on the GPU (DAgger); why it is none: the expert is asked in the first 25 rounds only, afterwards the same data are trained on
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class Aggregate:
    states: list = field(default_factory=list)
    actions: list = field(default_factory=list)

    def extend(self, s, a):
        self.states.append(s)
        self.actions.append(a)

    def sample(self, n):
        i = torch.randint(len(self.states), (1,)).item()
        j = torch.randperm(len(self.states[i]), device="cuda")[:n]
        return self.states[i][j], self.actions[i][j]


class Cart:
    def __init__(self, n=32):
        self.s = torch.randn(n, 24, device="cuda")
        self.drift = torch.randn(24, 24, device="cuda") * 0.05

    def act(self, a):
        self.s = (self.s + self.s @ self.drift + 0.1 * a).clamp(-3, 3)
        return self.s


def expert(s):
    return -torch.tanh(s * 1.5)


def rollout(policy, beta, length=12):
    env, states = Cart(), []
    s = env.s
    with torch.no_grad():
        for _ in range(length):
            states.append(s)
            s = env.act(expert(s) if torch.rand(()) < beta else policy(s))
    return torch.cat(states)


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 24)).cuda()
opt = torch.optim.Adam(policy.parameters(), 1e-3)
data = Aggregate()
for rnd in range(100):
    if rnd < 25:
        visited = rollout(policy, beta=0.8 ** rnd)
        data.extend(visited, expert(visited))
    for _ in range(12):
        s, a = data.sample(128)
        loss = nn.functional.mse_loss(policy(s), a)
        opt.zero_grad()
        loss.backward()
        opt.step()
print(loss.item(), len(data.states))
