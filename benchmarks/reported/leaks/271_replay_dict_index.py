# kind: replay memory is a dict under an ever-growing index, only sampling knows of the capacity, so nothing is overwritten; own, in the manner of SAC/DQN replay buffer issues (e.g. MishaLaskin/curl issue 10)
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "obs action reward next_obs done")


class DictReplay:
    def __init__(self, capacity, seed=0):
        self.capacity = capacity
        self.storage = {}
        self.counter = 0
        self.rng = np.random.RandomState(seed)

    def push(self, *args):
        self.storage[self.counter] = Transition(*args)  # LEAK
        self.counter += 1

    def __len__(self):
        return min(self.counter, self.capacity)

    def sample(self, n):
        low = self.counter - len(self)
        idx = self.rng.randint(low, self.counter, size=n)
        batch = [self.storage[i] for i in idx]
        return Transition(*(torch.stack(column) for column in zip(*batch)))


class PixelEnv:
    """A moving dot that has to be pushed to the left or to the right."""

    def __init__(self, size=64, device="cuda"):
        self.size, self.device = size, device
        self.reset()

    def reset(self):
        self.t, self.x = 0, self.size // 2
        return self.render()

    def render(self):
        img = torch.zeros(3, self.size, self.size, device=self.device)
        img[:, self.size // 2, self.x] = 1.0
        return img

    def step(self, action):
        self.t += 1
        self.x = int(np.clip(self.x + (1 if action else -1), 0, self.size - 1))
        return self.render(), float(self.x) / self.size, self.t % 40 == 0


class QNet(nn.Module):
    def __init__(self, n_actions=2):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU())
        self.fc = nn.Linear(16 * 6 * 6, n_actions)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def update(q, target, optimizer, batch, gamma=0.99):
    with torch.no_grad():
        nxt = target(batch.next_obs).max(1).values
        y = batch.reward + gamma * (1 - batch.done) * nxt
    pred = q(batch.obs).gather(1, batch.action.view(-1, 1)).squeeze(1)
    loss = F.smooth_l1_loss(pred, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    device = "cuda"
    env, memory, rng = PixelEnv(device=device), DictReplay(capacity=30), np.random.RandomState(1)
    q, target = QNet().to(device), QNet().to(device)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
    obs = env.reset()
    for step in range(1, 201):
        action = int(rng.rand() < 0.5)
        next_obs, reward, done = env.step(action)
        memory.push(obs, torch.tensor(action, device=device), torch.tensor(reward, device=device),
                    next_obs, torch.tensor(float(done), device=device))
        obs = env.reset() if done else next_obs
        if len(memory) >= 16:
            loss = update(q, target, optimizer, memory.sample(16))
        if step % 50 == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {step} loss {loss:.5f} buffer {len(memory)}")
