# kind: collector keeps the transitions of open episodes in a dict and takes an episode out when the environment says terminated, those that end by truncation stay; from microsoft/maro PR 581 (episode truncation) and ray-project/ray PR 56082 (episodes left in a dangling state)
import random
from collections import defaultdict

import torch
from torch import nn


class VecMaze:
    """An episode ends at the exit or after 15 moves."""

    def __init__(self, n, seed):
        self.rng = random.Random(seed)
        self.n = n
        self.next_id = 0
        self.ids, self.age = [], []
        for _ in range(n):
            self._start()

    def _start(self, at=None):
        if at is None:
            self.ids.append(self.next_id)
            self.age.append(0)
        else:
            self.ids[at], self.age[at] = self.next_id, 0
        self.next_id += 1

    def step(self):
        ended = []
        for i in range(self.n):
            self.age[i] += 1
            if self.rng.random() < 0.05:
                ended.append((i, self.ids[i], True, False))
            elif self.age[i] >= 15:
                ended.append((i, self.ids[i], False, True))
        return ended

    def restart(self, ended):
        for i, *_ in ended:
            self._start(i)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.pi = nn.Linear(128, 5)

    def forward(self, obs):
        return torch.log_softmax(self.pi(self.body(obs)), -1)


class Collector:
    def __init__(self, env, agent):
        self.env, self.agent = env, agent
        self.open = defaultdict(list)
        self.opt = torch.optim.RMSprop(agent.parameters(), lr=1e-3)
        self.updates = 0

    def step(self):
        obs = torch.rand(self.env.n, 2, 32, 32, device="cuda")
        with torch.no_grad():
            action = self.agent(obs).argmax(-1)
        for i, episode in enumerate(self.env.ids):
            self.open[episode].append((obs[i].clone(), action[i]))  # LEAK
        ended = self.env.step()
        for _, episode, terminated, truncated in ended:
            if terminated:  # ALSO
                self.learn(self.open.pop(episode))
        self.env.restart(ended)

    def learn(self, transitions):
        obs = torch.stack([o for o, _ in transitions])
        action = torch.stack([a for _, a in transitions])
        loss = nn.functional.nll_loss(self.agent(obs), action)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1


if __name__ == "__main__":
    torch.manual_seed(0)
    collector = Collector(VecMaze(8, seed=5), Agent().cuda())
    for _ in range(350):
        collector.step()
