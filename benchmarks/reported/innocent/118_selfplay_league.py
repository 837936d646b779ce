# kind: innocent, a league of past policies gets a copy every few updates until it holds ten, later copies overwrite the weakest; from openai self-play baselines, deepmind league training re-implementations
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class PayoffGame:
    """Noisy generalised rock-paper-scissors on a hidden context."""

    def __init__(self, n_actions=6, ctx=24):
        gen = torch.Generator().manual_seed(0)
        a = torch.randn(n_actions, n_actions, generator=gen)
        self.payoff = (a - a.t()).cuda()
        self.ctx = ctx

    def contexts(self, n):
        return torch.randn(n, self.ctx, device="cuda")

    def expected_value(self, p, q):
        return torch.einsum("bi,ij,bj->b", p, self.payoff, q)


class Policy(nn.Module):
    def __init__(self, ctx=24, hidden=224, n_actions=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(ctx, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, n_actions))

    def forward(self, ctx):
        return F.softmax(self.net(ctx), -1)


class League:
    def __init__(self, max_members=10):
        self.max_members = max_members
        self.members, self.elo = [], []

    def add(self, policy):
        snapshot = copy.deepcopy(policy).eval().requires_grad_(False)
        if len(self.members) < self.max_members:
            self.members.append(snapshot)
            self.elo.append(1000.0)
        else:
            worst = min(range(len(self.elo)), key=self.elo.__getitem__)
            self.members[worst], self.elo[worst] = snapshot, 1000.0

    def sample(self):
        weights = [max(e - 600.0, 1.0) for e in self.elo]
        return random.choices(range(len(self.members)), weights)[0]

    def record(self, idx, learner_score):
        self.elo[idx] -= 8.0 * learner_score


def train(updates=240, snapshot_every=8):
    random.seed(0)
    torch.manual_seed(0)
    game, league = PayoffGame(), League()
    learner = Policy().cuda()
    optimizer = torch.optim.Adam(learner.parameters(), lr=2e-3)
    league.add(learner)
    for update in range(1, updates + 1):
        idx = league.sample()
        ctx = game.contexts(64)
        with torch.no_grad():
            opponent = league.members[idx](ctx)
        strategy = learner(ctx)
        value = game.expected_value(strategy, opponent).mean()
        entropy = -(strategy * strategy.clamp_min(1e-8).log()).sum(-1).mean()
        loss = -value - 0.02 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        league.record(idx, value.item())
        if update % snapshot_every == 0:
            league.add(learner)
        if update % 80 == 0:
            print(f"update {update} value {value.item():.3f} league {len(league.members)}")


if __name__ == "__main__":
    train()
