# kind: the buffer of imagined transitions is reallocated when the rollout length of the schedule goes up and overwritten as a ring otherwise, the length stops at its maximum; after jannerm/mbpo issue 25
import torch
from torch import nn

torch.manual_seed(12)
dev = "cuda"
OBS, ACT = 48, 8


class RingBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.data = torch.zeros(capacity, 2 * OBS + ACT + 1, device=dev)
        self.size = self.ptr = 0

    def add(self, rows):
        idx = (self.ptr + torch.arange(len(rows), device=dev)) % self.capacity
        self.data[idx] = rows
        self.ptr = (self.ptr + len(rows)) % self.capacity
        self.size = min(self.size + len(rows), self.capacity)

    def sample(self, n):
        return self.data[torch.randint(0, self.size, (n,), device=dev)]

    def resized(self, capacity):
        new = RingBuffer(capacity)
        new.add(self.data[: self.size][-capacity:])
        return new


def split(rows):
    return rows.split([OBS, ACT, OBS, 1], -1)


class Env:
    def __init__(self):
        self.a = torch.randn(OBS, OBS, device=dev) * 0.1
        self.b = torch.randn(ACT, OBS, device=dev) * 0.3

    def step(self, obs, act):
        nxt = torch.tanh(obs @ self.a + act @ self.b) + 0.01 * torch.randn_like(obs)
        return nxt, -nxt.square().mean(-1, keepdim=True)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 96), nn.SiLU(), nn.Linear(96, o)).to(dev)


def rollout_length(epoch, lo=1, hi=8, start=2, end=12):
    frac = min(max((epoch - start) / (end - start), 0), 1)
    return int(lo + frac * (hi - lo))


def main():
    env, real = Env(), RingBuffer(4096)
    dynamics, critic, actor = mlp(OBS + ACT, OBS + 1), mlp(OBS + ACT, 1), mlp(OBS, ACT)
    opt_m = torch.optim.Adam(dynamics.parameters(), lr=1e-3)
    opt_q = torch.optim.Adam(critic.parameters(), lr=1e-3)
    opt_a = torch.optim.Adam(actor.parameters(), lr=3e-4)
    horizon, batch, retain = 1, 1024, 4
    imagined = RingBuffer(horizon * batch * retain)
    obs = torch.randn(64, OBS, device=dev)
    for epoch in range(70):
        if rollout_length(epoch) != horizon:
            horizon = rollout_length(epoch)
            imagined = imagined.resized(horizon * batch * retain)
        with torch.no_grad():
            for _ in range(4):
                act = torch.tanh(actor(obs)) + 0.1 * torch.randn(64, ACT, device=dev)
                nxt, rew = env.step(obs, act)
                real.add(torch.cat([obs, act, nxt, rew], -1))
                obs = nxt
        for _ in range(6):
            o, a, n, r = split(real.sample(256))
            m_loss = (dynamics(torch.cat([o, a], -1)) - torch.cat([n - o, r], -1)).square().mean()
            opt_m.zero_grad()
            m_loss.backward()
            opt_m.step()
        with torch.no_grad():
            o = real.sample(batch)[:, :OBS]
            for _ in range(horizon):
                a = torch.tanh(actor(o))
                delta, r = dynamics(torch.cat([o, a], -1)).split([OBS, 1], -1)
                imagined.add(torch.cat([o, a, o + delta, r], -1))
                o = o + delta
        for _ in range(8):
            o, a, n, r = split(imagined.sample(256))
            with torch.no_grad():
                target = r + 0.95 * critic(torch.cat([n, torch.tanh(actor(n))], -1))
            q_loss = (critic(torch.cat([o, a], -1)) - target).square().mean()
            opt_q.zero_grad()
            q_loss.backward()
            opt_q.step()
            a_loss = -critic(torch.cat([o, torch.tanh(actor(o))], -1)).mean()
            opt_a.zero_grad()
            a_loss.backward()
            opt_a.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: horizon {horizon} imagined {imagined.size} model {m_loss.item():.4f}")


if __name__ == "__main__":
    main()
