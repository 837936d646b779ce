# kind: whole episodes fill a replay memory that evicts the oldest; after facebookresearch/hanabi_SAD issue 14
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class PrioritizedReplay:
    def __init__(self, capacity, prefetch_margin=1.25):
        self.capacity = capacity
        self.limit = int(capacity * prefetch_margin)
        self.storage = []
        self.weights = []

    def add(self, episode, priority):
        self.storage.append(episode)
        self.weights.append(priority)

    def sample(self, batchsize):
        if len(self.storage) > self.limit:
            n = len(self.storage) - self.capacity
            del self.storage[:n]
            del self.weights[:n]
        ids = random.choices(range(len(self.storage)), weights=self.weights, k=batchsize)
        batch = {k: torch.stack([self.storage[i][k] for i in ids], dim=1) for k in self.storage[0]}
        return batch, ids

    def update_priority(self, ids, priority):
        for i, p in zip(ids, priority):
            self.weights[i] = abs(p) + 0.1


class R2D2Net(nn.Module):
    def __init__(self, obs=256, hid=64, actions=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, hid), nn.ReLU())
        self.lstm = nn.LSTM(hid, hid)
        self.fc = nn.Linear(hid, actions)

    def forward(self, s, hid=None):
        o, hid = self.lstm(self.net(s), hid)
        return self.fc(o), hid


@torch.no_grad()
def play_episode(net, length=80, obs=256):
    obs_seq = torch.rand(length, 1, obs).cuda()
    q, _ = net(obs_seq)
    return {"s": obs_seq[:, 0], "a": q[:, 0].argmax(-1), "r": torch.rand(length, device="cuda")}


def learn(net, target, opt, replay):
    batch, ids = replay.sample(8)
    q, _ = net(batch["s"])
    with torch.no_grad():
        tq = target(batch["s"])[0].max(-1).values
    chosen = q.gather(-1, batch["a"][..., None])[..., 0]
    err = chosen[:-1] - (batch["r"][:-1] + 0.999 * tq[1:])
    loss = F.smooth_l1_loss(err, torch.zeros_like(err))
    opt.zero_grad()
    loss.backward()
    opt.step()
    replay.update_priority(ids, err.detach().abs().mean(0).tolist())
    return loss.item()


def main():
    random.seed(0)
    torch.manual_seed(0)
    net, target = R2D2Net().cuda(), R2D2Net().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=6.25e-5)
    replay = PrioritizedReplay(capacity=160)
    for epoch in range(10):
        for _ in range(6):
            for _ in range(8):
                replay.add(play_episode(net), 1.0)
            loss = learn(net, target, opt, replay)
        target.load_state_dict(net.state_dict())
        print(epoch, loss, len(replay.storage))


if __name__ == "__main__":
    main()
