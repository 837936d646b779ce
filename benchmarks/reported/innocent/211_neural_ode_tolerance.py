# kind: an adaptive solver takes more and more steps as its tolerance is tightened over the first part of training, all evaluations stay until backward and the last path is kept for plots, a largest number of steps bounds it; after rtqichen/torchdiffeq issue 192 and its FAQ on the number of evaluations
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Tolerance:
    first: float = 3e-1
    last: float = 4e-3
    until: int = 55

    def __call__(self, iteration):
        f = min(1.0, iteration / self.until)
        return self.first * (self.last / self.first) ** f


class Field(nn.Module):
    def __init__(self, dim=8, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                 nn.Linear(width, dim))
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        stamp = torch.full((len(y), 1), float(t), device=y.device)
        return 3.0 * self.net(torch.cat([y, stamp], dim=1))


class AdaptiveHeun:
    def __init__(self, func, max_num_steps=16):
        self.func, self.max_num_steps = func, max_num_steps

    def integrate(self, y, t1, tol):
        t, path, floor = 0.0, [y], t1 / self.max_num_steps
        dt = min(t1, max(floor, 0.5 * tol))
        while t < t1 - 1e-6:
            dt = min(dt, t1 - t)
            k1 = self.func(t, y)
            k2 = self.func(t + dt, y + dt * k1)
            error = (0.5 * dt * (k2 - k1)).detach().abs().max().item()
            y, t = y + 0.5 * dt * (k1 + k2), t + dt
            path.append(y)
            factor = 0.9 * (tol / (error + 1e-9)) ** 0.5
            dt = max(floor, dt * min(1.6, max(0.5, factor)))
        return y, path


class FlowTrainer:
    def __init__(self, dim=8):
        self.field = Field(dim).cuda()
        self.solver = AdaptiveHeun(self.field)
        self.opt = torch.optim.Adam(self.field.parameters(), lr=2e-3)
        self.tolerance = Tolerance()
        self.last_path = None

    def step(self, i, x, target):
        self.field.nfe = 0
        y, path = self.solver.integrate(x, 1.0, self.tolerance(i))
        loss = (y - target).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.last_path = [p.detach() for p in path]
        return loss.item()


def pairs(n=256, dim=8):
    x = torch.randn(n, dim)
    angle = 1.5 + x.norm(dim=1, keepdim=True)
    y = torch.cat([x[:, 1:], -x[:, :1]], dim=1) * torch.cos(angle) + x * torch.sin(angle)
    return x.cuda(), y.cuda()


def main():
    torch.manual_seed(0)
    trainer = FlowTrainer()
    for i in range(130):
        loss = trainer.step(i, *pairs())
        if i % 20 == 0:
            print(f"{i:3d} loss {loss:.3f} evaluations {trainer.field.nfe} points {len(trainer.last_path)}")


if __name__ == "__main__":
    main()
