# kind: Lookahead makes its slow weights at a layer's first synchronisation and layers join one by one; after timm.optim.Lookahead
from collections import defaultdict

import torch
from torch import nn
import torch.nn.functional as F


class Lookahead:
    def __init__(self, base, alpha=0.5, k=6):
        self.base, self.alpha, self.k = base, alpha, k
        self.state = defaultdict(dict)
        self.steps = 0

    @property
    def param_groups(self):
        return self.base.param_groups

    @torch.no_grad()
    def sync(self, group):
        for p in group["params"]:
            if p.grad is None:
                continue
            slot = self.state[p]
            if "slow" not in slot:
                slot["slow"] = p.detach().clone()
            slot["slow"].add_(p - slot["slow"], alpha=self.alpha)
            p.copy_(slot["slow"])

    def step(self):
        self.base.step()
        self.steps += 1
        if self.steps % self.k == 0:
            for group in self.param_groups:
                self.sync(group)

    def zero_grad(self):
        self.base.zero_grad()


class DeepMLP(nn.Module):
    def __init__(self, dim=160, depth=8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 10)

    def forward(self, x, trainable_from):
        for i, layer in enumerate(self.layers):
            if i < trainable_from:
                with torch.no_grad():
                    x = x + F.relu(layer(x)) * 0.3
            else:
                x = x + F.relu(layer(x)) * 0.3
        return self.head(x)


torch.manual_seed(0)
model = DeepMLP().cuda()
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-3))
for step in range(150):
    x = torch.randn(32, 160, device="cuda")
    y = x[:, :10].argmax(1)
    trainable_from = max(0, 8 - step // 6)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, trainable_from), y)
    loss.backward()
    optimizer.step()
print("loss", loss.item(), "slow weights", len(optimizer.state))
