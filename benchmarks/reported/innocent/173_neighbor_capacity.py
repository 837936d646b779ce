# kind: padded neighbour list of a particle simulation and the descriptor buffer beside it are reallocated with some slack whenever a particle has more neighbours than columns, the box is compressed to its target density and then kept; after molecular dynamics on the GPU (thorben-frank/mlff PR 33)
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = torch.device("cuda")
PARTICLES, CUTOFF, SKIN = 2000, 1.0, 0.15
BASIS = 16
START_BOX, TARGET_BOX = 15.0, 6.4


class NeighborList:
    def __init__(self, slack=1.2):
        self.slack = slack
        self.capacity = 0
        self.index = None
        self.features = None
        self.allocations = 0

    def displacements(self, pos, box):
        delta = pos[:, None] - pos[None]
        return delta - box * torch.round(delta / box)

    def rebuild(self, pos, box):
        d2 = self.displacements(pos, box).square().sum(-1)
        d2.fill_diagonal_(float("inf"))
        reach = (CUTOFF + SKIN) ** 2
        longest = int((d2 < reach).sum(1).max())
        if longest > self.capacity:
            self.capacity = (int(longest * self.slack) + 7) // 8 * 8
            self.index = torch.empty(PARTICLES, self.capacity, dtype=torch.long, device=DEVICE)
            self.features = torch.empty(PARTICLES, self.capacity, BASIS, device=DEVICE)
            self.allocations += 1
            print(f"  neighbour list now {self.capacity} wide (longest row {longest})")
        near = d2.topk(self.capacity, dim=1, largest=False)
        own = torch.arange(PARTICLES, device=DEVICE)[:, None].expand_as(near.indices)
        self.index.copy_(torch.where(near.values < reach, near.indices, own))

    def geometry(self, pos, box):
        delta = pos[:, None] - pos[self.index]
        delta = delta - box * torch.round(delta / box)
        return delta, delta.square().sum(-1).sqrt()

    def describe(self, r):
        centers = torch.linspace(0.1, CUTOFF, BASIS, device=DEVICE)
        torch.sub(r.unsqueeze(-1), centers, out=self.features)
        self.features.mul_(4).square_().neg_().exp_()
        self.features.mul_(((r < CUTOFF) & (r > 0)).unsqueeze(-1))
        return self.features.sum(1)


def forces(delta, r, sigma=0.35, strength=20.0):
    overlap = (1 - r / sigma).clamp_min(0) * (r > 0)
    return (strength * overlap / r.clamp_min(1e-4)).unsqueeze(-1).mul(delta).sum(1), overlap.square().sum(1)


def main(steps=240, compress_until=130, dt=0.01):
    torch.manual_seed(17)
    side = torch.arange(45, device=DEVICE) * (START_BOX / 45)
    pos = torch.cartesian_prod(side, side)[:PARTICLES] + 0.05 * torch.randn(PARTICLES, 2, device=DEVICE)
    vel = 0.3 * torch.randn(PARTICLES, 2, device=DEVICE)
    box, neighbors = START_BOX, NeighborList()
    surrogate = nn.Sequential(nn.Linear(BASIS, 64), nn.SiLU(), nn.Linear(64, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(surrogate.parameters(), lr=2e-3)
    shrink = (TARGET_BOX / START_BOX) ** (1 / compress_until)
    for step in range(steps):
        if step < compress_until:
            box *= shrink
            pos = pos * shrink
        if step % 4 == 0:
            neighbors.rebuild(pos, box)
        delta, r = neighbors.geometry(pos, box)
        force, energy = forces(delta, r)
        vel = 0.97 * (vel + dt * force) + 0.03 * torch.randn_like(vel) * 0.3
        pos = (pos + dt * vel) % box
        predicted = surrogate(neighbors.describe(r) / 10).squeeze(1)
        loss = F.mse_loss(predicted, energy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 24 == 0:
            print(f"step {step}: box {box:.2f}, kinetic {vel.square().mean().item():.3f}, surrogate {loss.item():.4f}")


if __name__ == "__main__":
    main()
