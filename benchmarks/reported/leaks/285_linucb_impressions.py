# kind: contextual bandit whose arms' matrices are created for each impression instead of each article; in the manner of a recommender blog post's comment section
import itertools
import random

import torch


class Arm:
    def __init__(self, dim, device):
        self.A_inv = torch.eye(dim, device=device)
        self.b = torch.zeros(dim, device=device)

    def ucb(self, x, alpha):
        theta = self.A_inv @ self.b
        return theta @ x + alpha * torch.sqrt(x @ self.A_inv @ x)

    def learn(self, x, reward):
        ax = self.A_inv @ x
        self.A_inv -= torch.outer(ax, ax) / (1 + x @ ax)
        self.b += reward * x


class ArmStore(dict):
    def __init__(self, dim, device):
        super().__init__()
        self.dim, self.device = dim, device

    def __missing__(self, key):
        self[key] = Arm(self.dim, self.device)  # LEAK
        return self[key]


class NewsFeed:
    ids = itertools.count(1)

    def __init__(self, articles, dim):
        self.embeddings = torch.randn(articles, dim) / dim ** 0.5

    def impression(self, k=4):
        picks = random.sample(range(len(self.embeddings)), k)
        return [{"impression": f"{next(self.ids):08d}-{a}", "article": a, "x": self.embeddings[a]} for a in picks]


def serve(feed, arms, rounds, alpha=0.5):
    clicks = 0
    for _ in range(rounds):
        slate = feed.impression()
        scored = [(arms[c["impression"]].ucb(c["x"].cuda(), alpha).item(), c) for c in slate]
        _, chosen = max(scored, key=lambda t: t[0])
        reward = float(random.random() < 0.1 + 0.02 * (chosen["article"] % 7))
        arms[chosen["impression"]].learn(chosen["x"].cuda(), reward)
        clicks += reward
    return clicks / rounds


random.seed(0)
torch.manual_seed(0)
with torch.no_grad():
    ctr = serve(NewsFeed(60, 96), ArmStore(96, "cuda"), rounds=2500)
print(f"ctr {ctr:.3f}")
