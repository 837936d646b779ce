# kind: functools.cache on a function with tensor arguments, tensors are hashed by identity and each batch brings new ones; from Stack Overflow / forum questions on lru_cache with tensors
from functools import cache

import torch
import torch.nn as nn
import torch.nn.functional as F


@cache  # LEAK
def pairwise(points):
    return torch.cdist(points, points)


@cache  # ALSO
def knn_index(points, k):
    dist = pairwise(points)  # ALSO
    return dist.topk(k, largest=False).indices


def gather(x, idx):
    b, n, k = idx.shape
    flat = idx.reshape(b, n * k, 1).expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).view(b, n, k, -1)


class EdgeConv(nn.Module):
    def __init__(self, i, o, k=8):
        super().__init__()
        self.k = k
        self.mlp = nn.Sequential(nn.Linear(2 * i, o), nn.ReLU(), nn.Linear(o, o))

    def forward(self, points, x):
        near = gather(x, knn_index(points, self.k))  # ALSO
        mid = x[:, :, None].expand_as(near)
        return self.mlp(torch.cat([mid, near - mid], -1)).amax(2)


class PointNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.e1, self.e2 = EdgeConv(3, 16), EdgeConv(16, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, points):
        h = self.e2(points, F.relu(self.e1(points, points)))
        return self.head(h.amax(1))


def repulsion(points, radius=0.3):
    close = (radius - pairwise(points)).clamp(min=0)  # ALSO
    return close.mean((1, 2))


def shapes(batch, n=96):
    y = torch.randint(4, (batch,))
    p = F.normalize(torch.randn(batch, n, 3), dim=-1)
    stretch = torch.tensor([[1, 1, 1], [2, 1, 1], [1, .2, 1], [1, 1, 3.]])
    return p * stretch[y][:, None], y


def train(steps=100):
    torch.manual_seed(0)
    net = PointNet().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(steps):
        pts, y = shapes(8)
        pts, y = pts.cuda(), y.cuda()
        weight = 1 + repulsion(pts)
        loss = (F.cross_entropy(net(pts), y, reduction="none") * weight).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(step, "loss", round(loss.item(), 3))


train()
