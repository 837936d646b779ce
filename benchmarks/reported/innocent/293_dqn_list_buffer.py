# kind: https://github.com/MishaLaskin/curl/issues/10: a replay buffer of pictures on the GPU fills up to its capacity, then overwrites
import random

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class ReplayBuffer:
    """Keeps transitions where they were made; the oldest is overwritten."""

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


class QNet(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(32 * 9 * 9, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, x):
        return self.head(self.conv(x.float() / 255))


class Env:
    def reset(self):
        self.t = 0
        return torch.randint(0, 256, (4, 84, 84), dtype=torch.uint8, device=device)

    def step(self, action):
        self.t += 1
        nxt = torch.randint(0, 256, (4, 84, 84), dtype=torch.uint8, device=device)
        return nxt, random.random(), self.t % 50 == 0


def main():
    random.seed(0)
    q, target = QNet().to(device), QNet().to(device)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
    buffer, env = ReplayBuffer(capacity=320), Env()
    state = env.reset()
    for step in range(160):
        for _ in range(4):
            with torch.no_grad():
                action = int(q(state[None]).argmax()) if random.random() > 0.1 else random.randrange(6)
            nxt, reward, done = env.step(action)
            buffer.push(state, torch.tensor(action, device=device), torch.tensor(reward, device=device), nxt)
            state = env.reset() if done else nxt
        if len(buffer) < 8:
            continue
        s, a, r, n = buffer.sample(8)
        with torch.no_grad():
            goal = r + 0.99 * target(n).max(1).values
        loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            target.load_state_dict(q.state_dict())
            print(f"{step}: loss {loss.item():.4f} buffer {len(buffer)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
