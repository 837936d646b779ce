# kind: a descriptor for derived quantities keeps them in a dict of its own that is keyed by the instance, molecules are made anew for every batch; after jazzband/jsonmodels issue 64
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_add_pool

DEVICE = "cuda"
STEPS = 80
BATCH = 12


class Derived:
    """Attribute that is computed when it is first asked for."""

    def __init__(self, function):
        self.function = function
        self.values = {}
        self.__doc__ = function.__doc__

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        if instance not in self.values:
            self.values[instance] = self.function(instance)  # LEAK
        return self.values[instance]


class Conformer:
    def __init__(self, numbers, positions):
        self.numbers = numbers
        self.positions = positions

    @classmethod
    def sample(cls, atoms):
        numbers = torch.randint(1, 10, (atoms,))
        steps = F.normalize(torch.randn(atoms, 3), dim=-1) * 1.4
        return cls(numbers.to(DEVICE), steps.cumsum(0).to(DEVICE))

    @Derived
    def distances(self):
        """All pairwise distances in angstrom."""
        return torch.cdist(self.positions, self.positions)

    @Derived
    def edges(self):
        """Pairs of different atoms within the cutoff."""
        near = (self.distances < 5.0) & ~torch.eye(len(self.numbers), dtype=torch.bool, device=self.numbers.device)
        return near.nonzero().t().contiguous()

    @Derived
    def expansion(self):
        """Gaussian basis of the distances, one row per edge."""
        row, col = self.edges
        centres = torch.linspace(0.5, 5.0, 32, device=self.positions.device)
        return torch.exp(-4.0 * (self.distances[row, col].unsqueeze(1) - centres) ** 2)

    @property
    def energy(self):
        row, col = self.edges
        d = self.distances[row, col]
        return (d.pow(-2) - 0.3 * d.pow(-1)).sum() / len(self.numbers)

    def to_data(self):
        return Data(z=self.numbers, edge_index=self.edges, edge_attr=self.expansion,
                    y=self.energy.view(1), num_nodes=len(self.numbers))


class EnergyNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.layers = nn.ModuleList(
            GINEConv(nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)), edge_dim=32)
            for _ in range(2)
        )
        self.readout = nn.Linear(width, 1)

    def forward(self, data):
        h = self.embedding(data.z)
        for layer in self.layers:
            h = h + layer(h, data.edge_index, data.edge_attr)
        return global_add_pool(self.readout(h), data.batch).squeeze(-1)


def main():
    random.seed(0)
    torch.manual_seed(0)
    net = EnergyNet().to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        conformers = [Conformer.sample(random.randint(25, 45)) for _ in range(BATCH)]
        data = Batch.from_data_list([c.to_data() for c in conformers])
        loss = F.smooth_l1_loss(net(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step:3d} {data.num_nodes} atoms {data.num_edges} edges loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
