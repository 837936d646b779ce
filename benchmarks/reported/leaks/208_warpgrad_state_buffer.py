# kind: a meta-learner stores clones of the adapted parameters per task slot for its warp update and takes the slots' states from the newest tasks only, buffers of tasks that are over are not cleared; from flennerhag/warpgrad issue 9
import math
from collections import OrderedDict, defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


def clone_state(state):
    return OrderedDict((k, v.detach().clone()) for k, v in state.items())


class WarpNet(nn.Module):
    """Task-adaptable layers with warp layers in between."""

    def __init__(self, width=96):
        super().__init__()
        self.adapt = nn.ModuleDict({"a": nn.Linear(1, width), "b": nn.Linear(width, width), "c": nn.Linear(width, 1)})
        self.warp = nn.ModuleDict({"a": nn.Linear(width, width), "b": nn.Linear(width, width)})

    def forward(self, x):
        h = self.warp["a"](torch.relu(self.adapt["a"](x)))
        h = self.warp["b"](torch.relu(self.adapt["b"](h)))
        return self.adapt["c"](h)


class ReplayBuffer:
    def __init__(self, inner_buffer_size=2):
        self.inner_buffer_size = inner_buffer_size
        self._state_buffer = defaultdict(list)
        self._data_buffer = defaultdict(list)

    def update(self, slot, state, data):
        self._state_buffer[slot].append(clone_state(state))  # LEAK
        self._data_buffer[slot].append(data)  # ALSO

    def newest(self, slots):
        for slot in slots:
            states, data = self._state_buffer[slot], self._data_buffer[slot]
            for s, d in list(zip(states, data))[-self.inner_buffer_size:]:
                yield s, d

    def clear(self):
        self._state_buffer.clear()
        self._data_buffer.clear()


class Sinusoids:
    def __init__(self):
        self.count = 0

    def sample(self):
        amplitude, phase = 0.1 + 4.9 * torch.rand(1).item(), math.pi * torch.rand(1).item()
        self.count += 1

        def draw(n=20):
            x = (torch.rand(n, 1) * 10 - 5).cuda()
            return x, amplitude * torch.sin(x + phase)

        return f"task-{self.count}", draw


class WarpGradTrainer:
    def __init__(self, model, meta_batch=2, inner_steps=3):
        self.model = model
        self.init = clone_state(model.adapt.state_dict())
        self.warp_opt = torch.optim.Adam(model.warp.parameters(), lr=1e-3)
        self.buffer = ReplayBuffer()
        self.meta_batch, self.inner_steps = meta_batch, inner_steps

    def adapt(self, slot, draw):
        self.model.adapt.load_state_dict(self.init)
        opt = torch.optim.SGD(self.model.adapt.parameters(), lr=1e-3)
        for _ in range(self.inner_steps):
            x, y = draw()
            loss = F.mse_loss(self.model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            self.buffer.update(slot, self.model.adapt.state_dict(), draw())
        return loss.item()

    def warp_step(self, slots):
        self.warp_opt.zero_grad()
        total = 0.0
        for state, (x, y) in self.buffer.newest(slots):
            self.model.adapt.load_state_dict(state)
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            total += loss.item()
        self.warp_opt.step()
        final = self.model.adapt.state_dict()
        for k in self.init:
            self.init[k].lerp_(final[k], 0.05)
        return total

    def meta_step(self, tasks):
        slots, last = [], 0.0
        for _ in range(self.meta_batch):
            slot, draw = tasks.sample()
            last = self.adapt(slot, draw)
            slots.append(slot)
        return last, self.warp_step(slots)


def main():
    torch.manual_seed(0)
    trainer, tasks = WarpGradTrainer(WarpNet().cuda()), Sinusoids()
    for step in range(80):
        inner, outer = trainer.meta_step(tasks)
        if step % 16 == 0:
            print(f"{step:3d} inner {inner:.3f} warp {outer:.3f}")


if __name__ == "__main__":
    main()
