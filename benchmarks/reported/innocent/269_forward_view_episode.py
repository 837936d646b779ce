# kind: differentiable plasticity (Hebbian traces) whose graph grows within a lifetime; why it is none: all lifetimes have the same length and the graph goes with the backward at their end
import torch
import torch.nn as nn


class PlasticCell(nn.Module):
    def __init__(self, n=48):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, n) * 0.05)
        self.alpha = nn.Parameter(torch.randn(n, n) * 0.01)
        self.eta = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, h, hebb):
        y = torch.tanh(x + (h[:, None] @ (self.w + self.alpha * hebb)).squeeze(1))
        return y, (1 - self.eta) * hebb + self.eta * h[:, :, None] * y[:, None, :]


class Life:
    def __init__(self, cell, batch, steps):
        self.cell, self.batch, self.steps = cell, batch, steps
        self.hebbs, self.outputs = [], []

    def live(self):
        pattern = torch.sign(torch.randn(self.batch, 48, device="cuda"))
        h = torch.zeros_like(pattern)
        hebb = torch.zeros(self.batch, 48, 48, device="cuda")
        for t in range(self.steps):
            cue = pattern if t < self.steps - 2 else pattern * (torch.rand_like(pattern) > 0.5)
            h, hebb = self.cell(cue, h, hebb)
            self.hebbs.append(hebb)
            self.outputs.append(h)
        return (self.outputs[-1] - pattern).pow(2).mean()


torch.manual_seed(0)
cell = PlasticCell().cuda()
opt = torch.optim.Adam(cell.parameters(), 1e-3)
for episode in range(70):
    life = Life(cell, 6, 12)
    loss = life.live()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
