# kind: innocent, prioritised replay takes new transitions in lazily allocated blocks until its capacity, then overwrites; in the manner of Rainbow/PER repositories (Kaixhin/Rainbow style)
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SumTree:
    def __init__(self, capacity):
        self.capacity = capacity
        self.tree = np.zeros(2 * capacity, dtype=np.float64)
        self.frames = [None] * capacity
        self.aux = [None] * capacity
        self.pos, self.size = 0, 0

    def _set(self, i, p):
        i += self.capacity
        delta = p - self.tree[i]
        while i >= 1:
            self.tree[i] += delta
            i //= 2

    def add(self, frame, aux, priority):
        self.frames[self.pos] = frame
        self.aux[self.pos] = aux
        self._set(self.pos, priority)
        self.pos = (self.pos + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def find(self, value):
        i = 1
        while i < self.capacity:
            i *= 2
            if value > self.tree[i] and self.tree[i + 1] > 0:
                value -= self.tree[i]
                i += 1
        return min(i - self.capacity, self.size - 1)


class PrioritizedReplay:
    def __init__(self, capacity, alpha=0.6):
        self.tree, self.alpha, self.max_p = SumTree(capacity), alpha, 1.0

    def append(self, frame, action, reward):
        self.tree.add(frame, (action, reward), self.max_p ** self.alpha)

    def sample(self, n, rng):
        total = self.tree.tree[1]
        idx = [self.tree.find(rng.uniform(total * i / n, total * (i + 1) / n)) for i in range(n)]
        frames = torch.stack([self.tree.frames[i] for i in idx])
        actions, rewards = zip(*[self.tree.aux[i] for i in idx])
        return idx, frames, torch.tensor(actions, device=frames.device), torch.tensor(rewards, device=frames.device)

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            self.tree._set(i, (abs(e) + 1e-3) ** self.alpha)


class DuelingNet(nn.Module):
    def __init__(self, n_actions=4):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten())
        self.value, self.adv = nn.Linear(1024, 1), nn.Linear(1024, n_actions)

    def forward(self, x):
        h = self.conv(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


def main(steps=280, learn_start=20):
    rng = np.random.RandomState(0)
    torch.manual_seed(0)
    net = DuelingNet().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    memory = PrioritizedReplay(capacity=128)
    for t in range(steps):
        state = torch.rand(4, 80, 80, device="cuda")
        with torch.no_grad():
            action = int(net(state[None]).argmax()) if rng.rand() > 0.1 else int(rng.randint(4))
        memory.append(state, action, float(rng.randn()))
        if t > learn_start:
            idx, s, a, r = memory.sample(16, rng)
            q = net(s).gather(1, a[:, None]).squeeze(1)
            td = q - r
            loss = F.huber_loss(q, r)
            opt.zero_grad()
            loss.backward()
            opt.step()
            memory.update(idx, td.detach().cpu().tolist())
        if t % 70 == 69:
            print(f"T={t + 1} memory {memory.tree.size}/{memory.tree.capacity}")


if __name__ == "__main__":
    main()
