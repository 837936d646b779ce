# kind: the positions and the s history of the optimizer state carry a graph through all the previous steps, because the model sets requires_grad on positions; after TorchSim/torch-sim PR 559
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class LBFGSState:
    positions: torch.Tensor
    forces: torch.Tensor
    energy: torch.Tensor
    prev_positions: torch.Tensor
    prev_forces: torch.Tensor
    s_history: torch.Tensor
    y_history: torch.Tensor


class ConservativeModel(nn.Module):
    """Energy from a small network over soft neighbour features, forces by autograd."""

    def __init__(self, n_basis=16, hidden=64):
        super().__init__()
        self.register_buffer("anchors", torch.randn(n_basis, 3))
        self.net = nn.Sequential(nn.Linear(n_basis, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, positions):
        positions.requires_grad_(True)
        feats = torch.exp(-((positions[:, :, None] - self.anchors) ** 2).sum(-1))
        energy = self.net(feats).sum(dim=(1, 2))
        forces = -torch.autograd.grad(energy.sum(), positions)[0]
        return {"energy": energy.detach(), "forces": forces.detach()}


def lbfgs_init(positions, model):
    out = model(positions)
    n_sys, n_atoms, _ = positions.shape
    empty = torch.zeros(n_sys, 0, n_atoms, 3, device=positions.device)
    return LBFGSState(positions=positions, forces=out["forces"], energy=out["energy"],
                      prev_positions=positions.clone(), prev_forces=out["forces"].clone(),
                      s_history=empty, y_history=empty.clone())


def two_loop(state, alpha=70.0):
    q = -state.forces
    m = state.s_history.shape[1]
    s, y = state.s_history, state.y_history
    rho = 1.0 / ((s * y).sum(dim=(2, 3)) + 1e-8)
    coeffs = []
    for i in reversed(range(m)):
        a = rho[:, i] * (s[:, i] * q).sum(dim=(1, 2))
        q = q - a[:, None, None] * y[:, i]
        coeffs.append(a)
    z = q / alpha
    for i in range(m):
        b = rho[:, i] * (y[:, i] * z).sum(dim=(1, 2))
        z = z + (coeffs[m - 1 - i] - b)[:, None, None] * s[:, i]
    return -z


def lbfgs_step(state, model, max_history=5, max_step=0.2):
    step = two_loop(state)
    norm = step.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    step = step * (max_step / norm).clamp(max=1.0)
    new_positions = state.positions + step
    out = model(new_positions.detach().clone())

    s_new = new_positions - state.positions
    y_new = -out["forces"] + state.forces
    state.s_history = torch.cat([state.s_history, s_new.unsqueeze(1)], dim=1)[:, -max_history:]  # LEAK
    state.y_history = torch.cat([state.y_history, y_new.unsqueeze(1)], dim=1)[:, -max_history:]
    state.prev_positions, state.prev_forces = state.positions, state.forces  # ALSO
    state.positions = new_positions  # ALSO
    state.forces, state.energy = out["forces"], out["energy"]
    return state


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = ConservativeModel().to(device)
    positions = torch.randn(32, 96, 3, device=device)
    state = lbfgs_init(positions, model)
    for i in range(60):
        state = lbfgs_step(state, model)
        if i % 20 == 0:
            print(i, state.energy.mean().item(), state.forces.abs().max().item())


if __name__ == "__main__":
    main()
