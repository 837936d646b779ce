# kind: Khrylx/PyTorch-RL issue #2 style question "GPU memory increases during RL training": a replay memory that fills up to its capacity
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ReplayMemory:
    """As in the PyTorch DQN tutorial, but on the GPU."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.memory = []
        self.position = 0

    def push(self, *transition):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, n):
        return [torch.stack(x) for x in zip(*random.sample(self.memory, n))]

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(),
                                 nn.Linear(32 * 9 * 9, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, x):
        return self.net(x)


policy, target = DQN(4).cuda(), DQN(4).cuda()
target.load_state_dict(policy.state_dict())
opt = torch.optim.Adam(policy.parameters(), lr=1e-4)
memory = ReplayMemory(400)
state = torch.rand(4, 84, 84, device="cuda")
for step in range(800):
    if random.random() < 0.1:
        action = torch.randint(4, (1,), device="cuda")
    else:
        with torch.no_grad():
            action = policy(state[None]).argmax(1)
    nxt = torch.rand(4, 84, 84, device="cuda")
    memory.push(state, action, torch.rand(1, device="cuda"), nxt)
    state = nxt
    if len(memory) < 32 or step % 4:
        continue
    s, a, r, s2 = memory.sample(16)
    q = policy(s).gather(1, a)
    with torch.no_grad():
        y = r + 0.99 * target(s2).max(1, keepdim=True)[0]
    loss = F.smooth_l1_loss(q, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        target.load_state_dict(policy.state_dict())
print(len(memory), torch.cuda.memory_allocated() >> 20, "MiB")
