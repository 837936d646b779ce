# kind: rollback snapshots of weights and momentum are thinned like backups, the last six, then every third of them, then every third of those, each tier has its own limit and the upper ones fill late; after training loops that go back after loss spikes
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
STEPS = 240


class Snapshot:
    def __init__(self, step, model, optimizer, loss):
        self.step = step
        self.loss = loss
        self.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.momentum = [optimizer.state[p]["momentum_buffer"].clone()
                         for g in optimizer.param_groups for p in g["params"]]

    def restore(self, model, optimizer):
        model.load_state_dict(self.weights)
        params = [p for g in optimizer.param_groups for p in g["params"]]
        for p, m in zip(params, self.momentum):
            optimizer.state[p]["momentum_buffer"].copy_(m)


class Rotation:
    def __init__(self, limits=(6, 5, 3), promote_every=3):
        self.tiers = [deque() for _ in limits]
        self.limits = limits
        self.promote_every = promote_every
        self.leaving = [0] * len(limits)

    def add(self, snapshot, tier=0):
        self.tiers[tier].append(snapshot)
        if len(self.tiers[tier]) <= self.limits[tier]:
            return
        old = self.tiers[tier].popleft()
        self.leaving[tier] += 1
        if tier + 1 < len(self.tiers) and self.leaving[tier] % self.promote_every == 0:
            self.add(old, tier + 1)

    def go_back(self, bad_step, distance, model, optimizer):
        candidates = [s for t in self.tiers for s in t if s.step <= bad_step - distance]
        if not candidates:
            return None
        chosen = max(candidates, key=lambda s: s.step)
        chosen.restore(model, optimizer)
        return chosen.step

    def describe(self):
        return "/".join(str(len(t)) for t in self.tiers)


class TextMixer(nn.Module):
    def __init__(self, vocab=512, dim=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.ModuleList([nn.Conv1d(dim, dim, 3) for _ in range(3)])
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        for conv in self.mix:
            x = x + torch.tanh(conv(F.pad(x, (2, 0))))
        return self.out(x.transpose(1, 2))


def batch_at(step, gen):
    start = torch.randint(0, 512, (12, 1), generator=gen)
    stride = torch.randint(1, 5, (12, 1), generator=gen)
    tokens = (start + stride * torch.arange(49)) % 512
    if step in (95, 171):
        tokens = torch.randint(0, 512, tokens.shape, generator=gen)
    return tokens.to(device)


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    model = TextMixer().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rotation, average = Rotation(), None
    for step in range(STEPS):
        tokens = batch_at(step, gen)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        value = loss.item()
        if average is not None and value > 1.8 * average:
            reached = rotation.go_back(step, 6, model, optimizer)
            if reached is not None:
                print(f"step {step}: loss {value:.2f} against {average:.2f}, back to step {reached}")
                continue
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average = value if average is None else 0.9 * average + 0.1 * value
        if step % 2 == 0:
            rotation.add(Snapshot(step, model, optimizer, value))
        if step % 30 == 0:
            print(f"step {step}: loss {average:.3f}, snapshots {rotation.describe()}")


if __name__ == "__main__":
    main()
