# kind: the planner clones environment states with deepcopy and hands in one memo dict for all calls so that the map is shared, the memo keeps each original and its clone; after idaholab/MontePy issue 514
import copy
import random

import torch
from torch import nn

torch.manual_seed(9)
random.seed(9)


class Terrain:
    """Static map, shared by all states of a run."""

    def __init__(self, size):
        self.height = torch.rand(size, size).cuda()


class State:
    def __init__(self, terrain, fog, position):
        self.terrain = terrain
        self.fog = fog
        self.position = position
        self.steps = 0

    def move(self, dx, dy):
        size = self.terrain.height.shape[0]
        x = min(max(self.position[0] + dx, 8), size - 9)
        y = min(max(self.position[1] + dy, 8), size - 9)
        self.position = (x, y)
        self.fog[x - 8:x + 8, y - 8:y + 8] = 0
        self.steps += 1

    def observe(self):
        x, y = self.position
        patch = self.terrain.height[x - 8:x + 8, y - 8:y + 8]
        fog = self.fog[x - 8:x + 8, y - 8:y + 8]
        return torch.stack([patch, fog]).flatten()


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs):
        return self.net(obs).squeeze(-1)


class Planner:
    MOVES = [(8, 0), (-8, 0), (0, 8), (0, -8)]

    def __init__(self, value, terrain):
        self.value = value
        # the terrain is large and never changes: make deepcopy reuse it
        self.memo = {id(terrain): terrain}

    def clone(self, state):
        return copy.deepcopy(state, self.memo)  # LEAK

    @torch.no_grad()
    def best_move(self, state):
        root = self.clone(state)
        scored = []
        for move in self.MOVES * 2:
            child = State(root.terrain, root.fog.clone(), root.position)
            child.move(*move)
            for _ in range(3):
                child.move(*random.choice(self.MOVES))
            scored.append((self.value(child.observe()).item(), move))
        return max(scored)[1]


def main():
    terrain = Terrain(512)
    planner = Planner(Value().cuda(), terrain)
    explored = 0.0
    for decision in range(300):
        # the simulator hands over a fresh snapshot of the world at every decision
        fog = torch.ones(512, 512).cuda()
        fog[: decision + 1] = 0
        state = State(terrain, fog, (256, 256))
        move = planner.best_move(state)
        state.move(*move)
        explored += 1 - state.fog.mean().item()
        if decision % 30 == 29:
            print(f"decision {decision + 1}: explored {explored / (decision + 1):.3f} move {move}")


if __name__ == "__main__":
    main()
