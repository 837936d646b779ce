# CARD: 8GiB
# KNOBS: SUBSTEPS=50 FRAMES=8 TBPTT CHECKPOINT=Frame SPRINGS=700000 AUTOCAST OPT
# EXPERT: the gradient of the design goes through every substep of the simulation, and each of the 8 x 50 substeps keeps the vectors along all 700000 springs (about 31 MB); the parameters and states themselves are small; checkpoint frame by frame, fewer frames or substeps, a coarser mesh, truncate the gradient at the frames; optimizer and autocast do not matter
# after NVIDIA/warp issue 393 (https://github.com/NVIDIA/warp/issues/393), a tendon-driven soft finger at 1000 frames per second with 300 substeps on an RTX 4090; rebuilt in PyTorch
import os

import torch
import torch.nn as nn

import knobs

FRAMES = int(os.environ.get("FRAMES", 8))
SUBSTEPS = int(os.environ.get("SUBSTEPS", 50))
SPRINGS = int(os.environ.get("SPRINGS", 700000))
TBPTT = os.environ.get("TBPTT") == "1"
VERTICES = SPRINGS // 7


class SoftMesh:
    """springs between vertices of a tetrahedral mesh"""

    def __init__(self, device="cuda"):
        self.x0 = torch.rand(VERTICES, 3, device=device)
        self.i = torch.randint(0, VERTICES, (SPRINGS,), device=device)
        self.j = (self.i + torch.randint(1, 50, (SPRINGS,), device=device)) % VERTICES
        self.rest = (self.x0[self.j] - self.x0[self.i]).norm(dim=1, keepdim=True) + 1e-3
        self.inv_mass = torch.full((VERTICES, 1), 10.0, device=device)
        self.gravity = torch.tensor([0.0, -9.8, 0.0], device=device)


class SemiImplicitIntegrator:
    def __init__(self, mesh, dt, stiffness=400.0, damping=0.5):
        self.mesh, self.dt, self.stiffness, self.damping = mesh, dt, stiffness, damping

    def forces(self, x, v, tension):
        m = self.mesh
        d = x[m.j] - x[m.i]
        length = d.norm(dim=1, keepdim=True)
        direction = d / length
        closing = ((v[m.j] - v[m.i]) * direction).sum(1, keepdim=True)
        magnitude = (self.stiffness * (length - m.rest) / m.rest + self.damping * closing) + tension
        f = magnitude * direction
        return torch.zeros_like(x).index_add(0, m.i, f).index_add(0, m.j, -f)

    def step(self, x, v, tension):
        f = self.forces(x, v, tension)
        v = v + self.dt * (f * self.mesh.inv_mass + self.mesh.gravity)
        depth = torch.relu(-x[:, 1:2])
        v = v + self.dt * 1000.0 * torch.cat([torch.zeros_like(depth), depth, torch.zeros_like(depth)], dim=1)
        return x + self.dt * v, v


class Frame(nn.Module):
    """all substeps of one frame"""

    def __init__(self, integrator):
        super().__init__()
        self.integrator = integrator

    def forward(self, x, v, tension):
        for _ in range(SUBSTEPS):
            x, v = self.integrator.step(x, v, tension)
        return x, v


class TendonController(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, t):
        phase = torch.tensor([[t, t * t]], device="cuda")
        return self.net(phase).squeeze()


class SoftFinger(nn.Module):
    def __init__(self):
        super().__init__()
        self.mesh = SoftMesh()
        self.controller = TendonController()
        self.frame = Frame(SemiImplicitIntegrator(self.mesh, dt=1e-3 / SUBSTEPS))
        self.target = torch.tensor([0.5, 0.8, 0.5], device="cuda")

    def tip_loss(self, x):
        return (x[: VERTICES // 100].mean(0) - self.target).square().sum()

    def rollout(self):
        x, v = self.mesh.x0, torch.zeros_like(self.mesh.x0)
        total = 0.0
        for k in range(FRAMES):
            x, v = self.frame(x, v, self.controller(k / FRAMES))
            if TBPTT:
                loss = self.tip_loss(x)
                loss.backward()
                total += loss.item()
                x, v = x.detach(), v.detach()
            if k % 2 == 0:
                print(f"frame {k}: allocated MiB {torch.cuda.memory_allocated() // 2 ** 20}")
        return total if TBPTT else self.tip_loss(x)


def main():
    finger = SoftFinger().cuda()
    knobs.apply(finger)
    optimizer = torch.optim.Adam(finger.controller.parameters(), lr=1e-2)
    for epoch in range(2):
        optimizer.zero_grad()
        with knobs.autocast():
            loss = finger.rollout()
        if not TBPTT:
            loss.backward()
            loss = loss.item()
        optimizer.step()
        print(f"epoch {epoch} distance {loss:.5f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
