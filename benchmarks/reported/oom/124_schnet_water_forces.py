# CARD: 24GiB
# KNOBS: BATCH=2 ATOMS=768 NEIGHBORS=767 ENERGY_ONLY AUTOCAST CHECKPOINT=InteractionBlock OPT
# EXPERT: filter activations on all 768 x 767 pairs a box (128 floats each, 0.56 GiB a tensor for 2 boxes), and forces with create_graph=True keep the graph of the first backward as well; enough: BATCH=1, a cutoff (NEIGHBORS=64), smaller boxes, ENERGY_ONLY (11 GiB; other training); not enough: AUTOCAST, CHECKPOINT=InteractionBlock (the double backward keeps the recomputed graph), OPT
# after atomistic-machine-learning/schnetpack issues 422 and 162 (https://github.com/atomistic-machine-learning/schnetpack/issues/422: water boxes whose neighbour list holds every other atom, 768 x 767); rebuilt with torch_geometric's SchNet
import os

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import SchNet

import knobs

BATCH = int(os.environ.get("BATCH", 2))
ATOMS = int(os.environ.get("ATOMS", 768))
NEIGHBORS = min(int(os.environ.get("NEIGHBORS", ATOMS - 1)), ATOMS - 1)
ENERGY_ONLY = os.environ.get("ENERGY_ONLY") == "1"
RHO = 0.01


def water_box(seed):
    g = torch.Generator().manual_seed(seed)
    pos = torch.rand(ATOMS, 3, generator=g) * 20
    z = torch.tensor([8, 1, 1]).repeat(ATOMS // 3)
    # the reference data base lists the neighbours of each atom, without any cutoff
    i = torch.arange(ATOMS).repeat_interleave(NEIGHBORS)
    j = (i + torch.arange(1, NEIGHBORS + 1).repeat(ATOMS)) % ATOMS
    return Data(z=z, pos=pos, edge_index=torch.stack([j, i]), energy=torch.randn(1, generator=g),
                forces=torch.randn(ATOMS, 3, generator=g), num_nodes=ATOMS)


class NeighborList:
    """SchNet's interaction graph out of the data base's neighbour list."""

    edge_index = None

    def __call__(self, pos, batch):
        row, col = self.edge_index
        return self.edge_index, (pos[row] - pos[col]).norm(dim=-1)


class ForceField(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.neighbors = NeighborList()
        self.schnet = SchNet(hidden_channels=128, num_filters=128, num_interactions=4, num_gaussians=50,
                             cutoff=10.0, interaction_graph=self.neighbors)

    def forward(self, data):
        self.neighbors.edge_index = data.edge_index
        pos = data.pos
        if ENERGY_ONLY:
            return self.schnet(data.z, pos, data.batch).view(-1), None
        pos.requires_grad_(True)
        energy = self.schnet(data.z, pos, data.batch).view(-1)
        forces = -torch.autograd.grad(energy.sum(), pos, create_graph=self.training)[0]
        return energy, forces


def loss_fn(energy, forces, data):
    loss = RHO * (energy.float() - data.energy).pow(2).mean()
    if forces is not None:
        loss = loss + (1 - RHO) * (forces.float() - data.forces).pow(2).mean()
    return loss


def main():
    torch.manual_seed(0)
    loader = DataLoader([water_box(i) for i in range(3 * BATCH)], batch_size=BATCH, shuffle=True)
    model = ForceField().cuda()
    knobs.apply(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    ema = None
    model.train()
    for step, data in enumerate(loader):
        data = data.to("cuda")
        optimizer.zero_grad()
        with knobs.autocast():
            energy, forces = model(data)
            loss = loss_fn(energy, forces, data)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
        print(f"step {step}: {data.num_nodes} atoms, {data.num_edges} pairs, loss {ema:.4f}")


if __name__ == "__main__":
    main()
