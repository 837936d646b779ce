# kind: evaluating a potential needs gradients for the forces and the predictions are collected with their graph; from metatensor/metatrain issue 702
from collections import defaultdict

import torch
from torch import nn


class PairPotential(nn.Module):
    def __init__(self, n_basis=24, hidden=48, cutoff=3.0):
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("centers", torch.linspace(0.4, cutoff, n_basis))
        self.net = nn.Sequential(nn.Linear(n_basis, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, positions):
        n = positions.shape[1]
        i, j = torch.triu_indices(n, n, offset=1, device=positions.device)
        d = ((positions[:, i] - positions[:, j]).pow(2).sum(-1) + 1e-6).sqrt()
        basis = torch.exp(-8 * (d.unsqueeze(-1) - self.centers) ** 2)
        envelope = 0.5 * (torch.cos(d.clamp(max=self.cutoff) * torch.pi / self.cutoff) + 1)
        return (self.net(basis).squeeze(-1) * envelope).sum(1)


def evaluate_model(model, positions, training):
    positions = positions.detach().requires_grad_(True)
    energy = model(positions)
    forces = -torch.autograd.grad(energy.sum(), positions, create_graph=training, retain_graph=True)[0]
    return {"energy": energy, "forces": forces}


def fit(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        pos = torch.rand(2, 12, 3, device="cuda") * 3
        pred = evaluate_model(model, pos, training=True)
        loss = pred["forces"].pow(2).mean() + pred["energy"].pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def eval_targets(model, dataset):
    predictions = defaultdict(list)
    for pos in dataset:
        pred = evaluate_model(model, pos.cuda(), training=False)
        for name, value in pred.items():
            predictions[name].append(value)  # LEAK
    return {name: torch.cat(values) for name, values in predictions.items()}


torch.manual_seed(0)
model = PairPotential().cuda()
fit(model, 10)
dataset = [torch.rand(2, 20, 3) * 3 for _ in range(120)]
result = eval_targets(model.eval(), dataset)
print({k: tuple(v.shape) for k, v in result.items()}, f"{result['energy'].std().item():.3f}")
