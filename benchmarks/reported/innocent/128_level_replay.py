# kind: the level buffer of prioritised level replay fills up to its capacity and then replaces the lowest score; after facebookresearch/level-replay
import random

import torch
from torch import nn
import torch.nn.functional as F


class LevelBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.levels = {}
        self.scores = {}

    def insert(self, seed, level, score):
        if seed in self.levels:
            self.scores[seed] = score
            return
        if len(self.levels) >= self.capacity:
            worst = min(self.scores, key=self.scores.get)
            if self.scores[worst] >= score:
                return
            del self.levels[worst], self.scores[worst]
        self.levels[seed] = level
        self.scores[seed] = score

    def sample(self):
        seeds = list(self.levels)
        weights = [max(self.scores[s], 1e-3) for s in seeds]
        seed = random.choices(seeds, weights)[0]
        return seed, self.levels[seed]


class ValueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 32 * 32, 1))

    def forward(self, x):
        return self.net(x)


def generate_level(seed):
    g = torch.Generator().manual_seed(seed)
    walls = (torch.rand(1, 64, 64, generator=g) < 0.3).float()
    goal = torch.rand(1, 64, 64, generator=g)
    return torch.cat([walls, goal]).cuda()


def true_return(level):
    return (level[1] * (1 - level[0])).mean().view(1, 1)


random.seed(0)
torch.manual_seed(0)
net = ValueNet().cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
buffer = LevelBuffer(capacity=32)
next_seed = 0
for episode in range(220):
    if not buffer.levels or len(buffer.levels) < buffer.capacity and random.random() < 0.6 or random.random() < 0.3:
        seed, level = next_seed, generate_level(next_seed)
        next_seed += 1
    else:
        seed, level = buffer.sample()
    value = net(level.unsqueeze(0))
    error = F.mse_loss(value, true_return(level))
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
    buffer.insert(seed, level, error.item() + 0.01 * random.random())
print(next_seed, "levels seen,", len(buffer.levels), "kept")
