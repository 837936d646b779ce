# kind: storage of a prioritized replay is allocated block by block while it fills, then overwritten as a ring; from Rainbow-like repositories (Kaixhin/Rainbow) and questions about lazily allocated replay memory
import numpy as np
import torch
import torch.nn as nn


class SumTree:
    def __init__(self, n):
        self.n = n
        self.tree = np.zeros(2 * n)

    def set(self, i, p):
        i += self.n
        self.tree[i] = p
        while i > 1:
            i //= 2
            self.tree[i] = self.tree[2 * i] + self.tree[2 * i + 1]

    def find(self, v):
        i = 1
        while i < self.n:
            i *= 2
            if v > self.tree[i]:
                v -= self.tree[i]
                i += 1
        return i - self.n


class BlockReplay:
    def __init__(self, capacity=1024, block=64, shape=(1, 40, 40)):
        self.capacity, self.block, self.shape = capacity, block, shape
        self.blocks = []
        self.actions, self.rewards = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self.tree, self.pos, self.full = SumTree(capacity), 0, False
        self.top = 1.0

    def __len__(self):
        return self.capacity if self.full else self.pos

    def add(self, frames, actions, rewards):
        for f, a, r in zip(frames, actions, rewards):
            b, o = divmod(self.pos, self.block)
            if b == len(self.blocks):
                self.blocks.append(torch.empty(self.block, *self.shape, device="cuda"))
            self.blocks[b][o].copy_(f)
            self.actions[self.pos], self.rewards[self.pos] = a, r
            self.tree.set(self.pos, self.top)
            self.pos = (self.pos + 1) % self.capacity
            self.full |= self.pos == 0

    def sample(self, k):
        total = self.tree.tree[1]
        idx = np.array([min(self.tree.find(np.random.rand() * total), len(self) - 1) for _ in range(k)])
        frames = torch.stack([self.blocks[i // self.block][i % self.block] for i in idx])
        return idx, frames, torch.from_numpy(self.actions[idx]).cuda(), torch.from_numpy(self.rewards[idx]).cuda()

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            self.tree.set(i, e)
            self.top = max(self.top, e)


def frames_and_rewards(n):
    a = np.random.randint(0, 4, n)
    f = torch.rand(n, 1, 40, 40) * 0.2
    good = np.random.randint(0, 4, n)
    for k in range(n):
        f[k, 0, 10 * good[k]:10 * good[k] + 10] += 0.8
    return f.cuda(), a, (a == good).astype(np.float32)


np.random.seed(0)
torch.manual_seed(0)
q = nn.Sequential(nn.Conv2d(1, 6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 12 * 12, 4)).cuda()
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
replay = BlockReplay()
for step in range(190):
    replay.add(*frames_and_rewards(12))
    idx, f, a, r = replay.sample(16)
    delta = q(f).gather(1, a[:, None]).squeeze(1) - r
    loss = delta.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    replay.update(idx, (delta.abs() + 1e-2).tolist())
    if step % 40 == 0:
        print(step, "loss %.4f" % loss.item(), "stored", len(replay), "blocks", len(replay.blocks))
