# kind: https://github.com/Khrylx/PyTorch-RL/issues/2: self-play against a league of earlier policies, of which at most 30 are kept
import copy
import random

import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda"


class Policy(nn.Module):
    def __init__(self, obs=48, actions=9, width=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi, self.v = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h), validate_args=False), self.v(h).squeeze(-1)


class League:
    def __init__(self, size, rng):
        self.size, self.rng = size, rng
        self.players, self.wins = [], []

    def add(self, policy):
        frozen = copy.deepcopy(policy).requires_grad_(False).eval()
        if len(self.players) == self.size:
            weakest = min(range(self.size), key=self.wins.__getitem__)
            self.players[weakest], self.wins[weakest] = frozen, 0.5
        else:
            self.players.append(frozen)
            self.wins.append(0.5)

    def opponent(self):
        i = self.rng.choices(range(len(self.players)), weights=[0.05 + w for w in self.wins])[0]
        return i, self.players[i]

    def report(self, i, won):
        self.wins[i] += 0.1 * ((not won) - self.wins[i])


def play(policy, opponent, horizon=8, games=64):
    logps, values, rewards = [], [], []
    state = torch.randn(games, 48, device=device)
    for _ in range(horizon):
        mine, value = policy(state)
        with torch.no_grad():
            theirs, _ = opponent(-state)
            b = theirs.sample()
        a = mine.sample()
        logps.append(mine.log_prob(a))
        values.append(value)
        rewards.append((a > b).float() - (a < b).float())
        state = torch.roll(state, 1, dims=-1) + 0.1 * torch.randn_like(state)
    return torch.stack(logps), torch.stack(values), torch.stack(rewards)


def main():
    rng = random.Random(4)
    policy, league = Policy().to(device), League(30, rng)
    league.add(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for update in range(75):
        i, other = league.opponent()
        logp, value, reward = play(policy, other)
        returns = reward.flip(0).cumsum(0).flip(0)
        advantage = returns - value
        loss = -(logp * advantage.detach()).mean() + 0.5 * advantage.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        league.report(i, rng.random() < 0.5)
        league.add(policy)
        if update % 10 == 0:
            print(f"{update}: {loss.item():.4f} league {len(league.players)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
