# kind: systems that have converged leave the running batch with the energy's graph of their last step and wait in a list until all are done; from TorchSim/torch-sim PR 590
from dataclasses import dataclass

import torch
import torch.nn as nn

ATOMS = 24


@dataclass
class SimState:
    positions: torch.Tensor
    velocities: torch.Tensor
    species: torch.Tensor
    energy: torch.Tensor
    forces: torch.Tensor

    @property
    def n_systems(self):
        return self.positions.shape[0]

    def pick(self, mask):
        return SimState(*(getattr(self, f)[mask] for f in self.__dataclass_fields__))


def concatenate_states(states):
    fields = SimState.__dataclass_fields__
    return SimState(*(torch.cat([getattr(s, f) for s in states]) for f in fields))


class UniversalModel(nn.Module):
    """Direct-force potential: the forces come from a head of their own."""

    def __init__(self, width=64):
        super().__init__()
        self.species = nn.Embedding(10, 16)
        self.body = nn.Sequential(nn.Linear(19, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.energy_head = nn.Linear(width, 1)
        self.force_head = nn.Linear(width, 3)

    def forward(self, positions, species):
        h = self.body(torch.cat([positions, self.species(species)], dim=-1))
        return {"energy": self.energy_head(h).sum((1, 2)), "forces": self.force_head(h).detach()}


class InFlightAutoBatcher:
    def __init__(self, states, max_in_flight=6, max_iterations=16):
        self.queue = list(enumerate(states))[::-1]
        self.max_in_flight = max_in_flight
        self.max_iterations = max_iterations
        self.current_idx, self.age = [], []

    def budget(self, idx):
        return 6 + (7 * idx) % (self.max_iterations - 5)

    def first_batch(self):
        return self._refill([])

    def _refill(self, kept):
        states = list(kept)
        while self.queue and len(self.current_idx) < self.max_in_flight:
            idx, state = self.queue.pop()
            self.current_idx.append(idx)
            self.age.append(0)
            states.append(state)
        return concatenate_states(states) if states else None

    def next_batch(self, state, force_norm, threshold):
        self.age = [a + 1 for a in self.age]
        done = [f < threshold or a >= self.budget(i) for i, f, a in zip(self.current_idx, force_norm, self.age)]
        if not any(done):
            return state, []
        mask = torch.tensor(done, device=state.positions.device)
        gone = [(i, state.pick(torch.tensor([k], device="cuda")))
                for k, i in enumerate(self.current_idx) if done[k]]
        self.current_idx = [i for i, d in zip(self.current_idx, done) if not d]
        self.age = [a for a, d in zip(self.age, done) if not d]
        kept = [] if mask.all() else [state.pick(~mask)]
        return self._refill(kept), gone


def fire_step(model, state, dt=0.05):
    out = model(state.positions, state.species)
    power = (out["forces"] * state.velocities).sum((1, 2), keepdim=True)
    velocities = torch.where(power > 0, state.velocities, torch.zeros_like(state.velocities)) + dt * out["forces"]
    return SimState(state.positions + dt * velocities, velocities, state.species, out["energy"], out["forces"])  # ALSO


def optimize(model, systems, threshold=0.02):
    batcher = InFlightAutoBatcher(systems)
    state = batcher.first_batch()
    completed, steps = [], 0
    while state is not None:
        state = fire_step(model, state)
        norms = state.forces.norm(dim=-1).amax(1).tolist()
        state, gone = batcher.next_batch(state, norms, threshold)
        completed.extend(gone)  # LEAK
        steps += 1
        if steps % 25 == 0:
            print(f"step {steps}: {len(completed)} systems done")
    return [s for _, s in sorted(completed, key=lambda p: p[0])]


def library(n):
    for _ in range(n):
        pos = torch.randn(1, ATOMS, 3, device="cuda")
        yield SimState(pos, torch.zeros_like(pos), torch.randint(0, 10, (1, ATOMS), device="cuda"),
                       torch.zeros(1, device="cuda"), torch.zeros_like(pos))


def main():
    torch.manual_seed(0)
    model = UniversalModel().cuda().eval()
    systems = list(library(70))
    for k, s in enumerate(systems):
        s.velocities += 0.01 * (k % 7)
    relaxed = optimize(model, systems)
    print(len(relaxed), "systems, lowest energy", min(s.energy.item() for s in relaxed))


if __name__ == "__main__":
    main()
