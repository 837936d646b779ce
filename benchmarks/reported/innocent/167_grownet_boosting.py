# kind: boosting with small networks, each stage adds a frozen learner and its predictions on the training set (dropout boosting leaves some out), then the predictions go and all learners are corrected together; after gradient boosting networks (GrowNet / DART)
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
ROWS, FEATURES, TARGETS, HIDDEN = 6144, 192, 64, 128
STAGES, STEPS_PER_STAGE = 16, 8
CORRECTIVE_STEPS = 100
SHRINKAGE = 0.6


class WeakLearner(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES + extra, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.out = nn.Linear(HIDDEN, TARGETS)

    def forward(self, x, previous):
        z = self.body(x if previous is None else torch.cat([x, previous], dim=1))
        return self.out(z), z


class Booster:
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.learners = nn.ModuleList()
        self.predictions = []
        self.penultimate = None

    def residual(self, drop):
        total = torch.zeros_like(self.y)
        for i, p in enumerate(self.predictions):
            if i not in drop:
                total.add_(p, alpha=SHRINKAGE)
        return self.y - total

    def add_stage(self):
        count = len(self.predictions)
        drop = set(random.sample(range(count), max(0, count // 8)))
        residual = self.residual(drop)
        learner = WeakLearner(0 if self.penultimate is None else HIDDEN).to(device)
        optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
        for _ in range(STEPS_PER_STAGE):
            rows = torch.randint(0, ROWS, (1024,), device=device)
            before = None if self.penultimate is None else self.penultimate[rows]
            loss = F.mse_loss(learner(self.x[rows], before)[0], residual[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        learner.requires_grad_(False)
        with torch.no_grad():
            prediction, self.penultimate = learner(self.x, self.penultimate)
        learner.zero_grad()
        self.learners.append(learner)
        self.predictions.append(prediction)
        return loss.item()

    def forward(self, x):
        total, z = 0.0, None
        for learner in self.learners:
            p, z = learner(x, z)
            total = total + SHRINKAGE * p
        return total

    def correct(self, steps):
        self.predictions.clear()
        self.penultimate = None
        self.learners.requires_grad_(True)
        optimizer = torch.optim.Adam(self.learners.parameters(), lr=3e-4)
        for step in range(steps):
            rows = torch.randint(0, ROWS, (512,), device=device)
            loss = F.mse_loss(self.forward(self.x[rows]), self.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"corrective step {step}: {loss.item():.4f}")


def main():
    random.seed(0)
    torch.manual_seed(0)
    x = torch.randn(ROWS, FEATURES, device=device)
    mixing = torch.randn(FEATURES, TARGETS, device=device) / FEATURES ** 0.5
    y = torch.sin(2 * x @ mixing) + 0.1 * torch.randn(ROWS, TARGETS, device=device)
    booster = Booster(x, y)
    for stage in range(STAGES):
        loss = booster.add_stage()
        print(f"stage {stage}: residual loss {loss:.4f}, rmse {booster.residual(set()).pow(2).mean().sqrt().item():.4f}")
    booster.correct(CORRECTIVE_STEPS)


if __name__ == "__main__":
    main()
