# kind: parameters along the paths of a few tasks are collected, used for one meta update and cleared, the number of adaptation steps is raised from two to eight during the first third; after flennerhag/warpgrad issue 9 (the repaired form)
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


class Learner(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.fast = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))
        self.warp = nn.Linear(width, width)

    def forward(self, x):
        h = torch.relu(self.fast[0](x))
        return self.fast[2](torch.relu(self.warp(h)))


class ParameterPath:
    def __init__(self):
        self.slots = defaultdict(list)

    def record(self, slot, module, batch):
        vector = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        self.slots[slot].append((vector, batch))

    def __iter__(self):
        for slot in sorted(self.slots):
            yield from self.slots[slot]

    def __len__(self):
        return sum(len(v) for v in self.slots.values())

    def clear(self):
        self.slots.clear()


class Curriculum:
    def __init__(self, first=2, last=8, every=9):
        self.first, self.last, self.every = first, last, every

    def __call__(self, meta_iteration):
        return min(self.last, self.first + meta_iteration // self.every)


class Meta:
    def __init__(self, tasks_per_update=5):
        self.net = Learner().cuda()
        self.opt = torch.optim.Adam(self.net.warp.parameters(), lr=1e-3)
        self.start = nn.utils.parameters_to_vector(self.net.fast.parameters()).detach().clone()
        self.path = ParameterPath()
        self.steps = Curriculum()
        self.tasks_per_update = tasks_per_update
        self.updates = 0

    def task(self):
        w = torch.randn(8, 1, device="cuda")
        return lambda: (lambda x: (x, torch.sin(x @ w)))(torch.randn(48, 8, device="cuda"))

    def inner(self, slot):
        draw = self.task()
        nn.utils.vector_to_parameters(self.start, self.net.fast.parameters())
        self.start = self.start.clone()
        opt = torch.optim.SGD(self.net.fast.parameters(), lr=0.02)
        for _ in range(self.steps(self.updates)):
            x, y = draw()
            opt.zero_grad()
            loss = F.mse_loss(self.net(x), y)
            loss.backward()
            opt.step()
            self.path.record(slot, self.net.fast, draw())
        return loss.item()

    def outer(self):
        self.opt.zero_grad()
        vector = None
        for vector, (x, y) in self.path:
            nn.utils.vector_to_parameters(vector.clone(), self.net.fast.parameters())
            (F.mse_loss(self.net(x), y) / len(self.path)).backward()
        self.opt.step()
        self.start = torch.lerp(self.start, vector, 0.1)
        self.path.clear()
        self.updates += 1


def main():
    torch.manual_seed(0)
    meta = Meta()
    for it in range(160):
        loss = meta.inner(it % meta.tasks_per_update)
        if it % meta.tasks_per_update == meta.tasks_per_update - 1:
            meta.outer()
        if it % 32 == 0:
            print(f"task {it}: loss {loss:.3f}, {meta.steps(meta.updates)} steps, {len(meta.path)} points")


if __name__ == "__main__":
    main()
