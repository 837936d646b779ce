# kind: innocent, one feature patch per (class, position) is remembered for mixing, there are 12 x 9 of them and after that they are only replaced; own, in the manner of ClassMix/CutMix banks in semi-supervised segmentation
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchBank(dict):
    """(class, cell) -> the last feature patch seen there"""

    def put(self, features, labels, cell):
        for f, y in zip(features, labels):
            self[int(y), cell] = f.detach().clone()

    def mix(self, features, labels, cell, lam=0.7):
        mixed = [lam * f + (1 - lam) * self.get((int(y), cell), f) for f, y in zip(features, labels)]
        return torch.stack(mixed)


class Backbone(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.c1 = nn.Conv2d(3, ch, 3, 2, 1)
        self.c2 = nn.Conv2d(ch, ch, 3, 1, 1)

    def forward(self, x):
        return F.relu(self.c2(F.relu(self.c1(x))))


class Head(nn.Module):
    def __init__(self, ch=32, classes=12):
        super().__init__()
        self.fc = nn.Linear(ch, classes)

    def forward(self, f):
        return self.fc(f.mean((2, 3)))


def cells(features, grid=3):
    size = features.size(-1) // grid
    for i, j in itertools.product(range(grid), range(grid)):
        yield i * grid + j, features[:, :, i * size:(i + 1) * size, j * size:(j + 1) * size]


def training_loop(iterations=150, classes=12, batch=4):
    device = torch.device("cuda")
    torch.manual_seed(0)
    backbone, head, bank = Backbone().to(device), Head(classes=classes).to(device), PatchBank()
    params = itertools.chain(backbone.parameters(), head.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    for it in range(iterations):
        images = torch.rand(batch, 3, 96, 96, device=device)
        # long-tailed: rare classes are met late
        labels = [min((it // 8 + k) % 16, classes - 1) if k else it % (1 + min(it // 6, classes - 1))
                  for k in range(batch)]
        y = torch.tensor(labels, device=device)
        features = backbone(images)
        cell, patch = list(cells(features))[it % 9]
        mixed = bank.mix(patch, labels, cell)
        loss = F.cross_entropy(head(features), y) + 0.5 * F.cross_entropy(head(mixed), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank.put(patch, labels, cell)
        if it % 30 == 29:
            print(f"it {it + 1} loss {loss.item():.4f} patches {len(bank)}/{classes * 9}")


if __name__ == "__main__":
    training_loop()
