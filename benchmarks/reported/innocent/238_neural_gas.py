# kind: a growing neural gas puts a new unit between the two that represent the data worst after every third batch, units bring a local basis with them, from 45 units on none is put in any more, and units that have lost all edges are removed; after xyutao/fscil issue 3 (how is the memory of the neural gas bounded) and itdxer/neupy issue 213
"""Atlas of patches of satellite images.

https://github.com/xyutao/fscil/issues/3 (about neural gas mechanism), https://github.com/itdxer/neupy/issues/213
"""
import time
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass(eq=False)
class Unit:
    centre: torch.Tensor
    basis: torch.Tensor  # leading directions around the centre, learned by Oja's rule
    error: float = 0.0
    edges: dict = field(default_factory=dict)  # other unit -> age


class GrowingNeuralGas:
    def __init__(self, dim, rank=96, every=3, max_units=45, max_age=60, rates=(0.05, 0.006)):
        self.rank, self.every, self.max_units, self.max_age, self.rates = rank, every, max_units, max_age, rates
        self.units = [self._unit(torch.randn(dim, device="cuda")) for _ in range(2)]
        self.batches = 0

    def _unit(self, centre):
        return Unit(centre, 0.1 * torch.randn(self.rank, len(centre), device=centre.device))

    def _connect(self, a, b):
        a.edges[b] = b.edges[a] = 0

    def _disconnect(self, a, b):
        del a.edges[b], b.edges[a]

    def fit(self, x):
        centres = torch.stack([u.centre for u in self.units])
        distance, order = torch.cdist(x, centres).topk(2, largest=False)
        for row, (first, second), d in zip(x, order.tolist(), distance[:, 0].tolist()):
            self._adapt(row, self.units[first], self.units[second], d)
        self.batches += 1
        if self.batches % self.every == 0 and len(self.units) < self.max_units:
            self._insert()
        self.units = [u for u in self.units if u.edges or u.error == 0.0]
        for u in self.units:
            u.error *= 0.95
        return distance[:, 0].mean()

    def _adapt(self, row, winner, runner_up, distance):
        winner.error += distance
        delta = row - winner.centre
        winner.centre = winner.centre + self.rates[0] * delta
        y = winner.basis @ delta
        winner.basis = winner.basis + 1e-3 * (torch.outer(y, delta) - y[:, None] * (y @ winner.basis))
        for other in list(winner.edges):
            other.centre = other.centre + self.rates[1] * (row - other.centre)
            winner.edges[other] += 1
            other.edges[winner] += 1
            if winner.edges[other] > self.max_age:
                self._disconnect(winner, other)
        self._connect(winner, runner_up)

    def _insert(self):
        worst = max(self.units, key=lambda u: u.error)
        if not worst.edges:
            return
        neighbour = max(worst.edges, key=lambda u: u.error)
        new = self._unit((worst.centre + neighbour.centre) / 2)
        self._disconnect(worst, neighbour)
        self._connect(worst, new)
        self._connect(new, neighbour)
        worst.error, neighbour.error = worst.error / 2, neighbour.error / 2
        new.error = worst.error
        self.units.append(new)


class PatchFeatures(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 32, 4, stride=4), nn.GELU(), nn.Flatten(), nn.Linear(32 * 16, dim))

    def forward(self, patches):
        return self.net(patches)


def patches(n, g, kinds=30, size=16):
    kind = torch.randint(0, kinds, (n, 1, 1, 1), generator=g).float()
    ramp = torch.linspace(0, 3.1, size).expand(4, size, size)
    return torch.sin(ramp * (1 + kind)) + 0.2 * torch.randn(n, 4, size, size, generator=g)


@torch.no_grad()
def main(batches=300, size=12):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(7)
    features = PatchFeatures().to("cuda").eval()
    gas = GrowingNeuralGas(dim=512)
    for i in range(batches):
        time.sleep(0.008)
        error = gas.fit(features(patches(size, g).to("cuda")))
        if i % 30 == 0:
            edges = sum(len(u.edges) for u in gas.units) // 2
            print(f"batch {i}: {len(gas.units)} units, {edges} edges, distance {error.item():.3f}")


if __name__ == "__main__":
    main()
