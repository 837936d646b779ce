# kind: adaptive conformal prediction, residuals concatenated in every step; why it is none: only the last 60000 scores are kept, the window is full after a third of the run
import torch
from torch import nn


class ConformalWindow:
    def __init__(self, size, alpha=0.1, gamma=0.01):
        self.size, self.target, self.alpha, self.gamma = size, alpha, alpha, gamma
        self.scores = None

    def add(self, s):
        merged = s if self.scores is None else torch.cat((self.scores, s))
        self.scores = merged[-self.size:].clone()

    def radius(self):
        q = min(max(1 - self.alpha, 0.01), 0.99)
        return self.scores.kthvalue(max(1, int(q * len(self.scores)))).values.item()

    def adapt(self, missed):
        self.alpha += self.gamma * (self.target - missed)


def stream(n, batch=1024):
    drift = 0.0
    for i in range(n):
        drift += 0.01
        x = torch.randn(batch, 16)
        yield x, x.sum(1, keepdim=True).sin() + drift + 0.2 * torch.randn(batch, 1)


torch.manual_seed(0)
reg = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 1)).cuda()
opt = torch.optim.Adam(reg.parameters(), 3e-3)
cp, covered = ConformalWindow(60000), []
for x, y in stream(190):
    x, y = x.cuda(), y.cuda()
    pred = reg(x)
    score = (pred - y).detach().abs().flatten()
    if cp.scores is not None:
        missed = (score > cp.radius()).float().mean().item()
        covered.append(1 - missed)
        cp.adapt(missed)
    cp.add(score)
    loss = (pred - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("coverage", sum(covered) / len(covered))
