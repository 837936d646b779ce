# CARD: 8GiB
# KNOBS: BATCH=32 POINTS=1024 K=24 AUTOCAST CHECKPOINT=ConvBNReLURes1D,LocalGrouper,PreExtraction CHECKPOINT_PATHS=pre_blocks.*,pos_blocks.* OPT
# EXPERT: conv and batch-norm outputs of the pre-extraction blocks on groups of 24 neighbours (32 x 512 x 24 x 128 floats, 192 MiB a tensor, the same size in each stage); enough: BATCH=16, AUTOCAST, CHECKPOINT=PreExtraction or ConvBNReLURes1D, K=12, POINTS=512; not enough: CHECKPOINT=LocalGrouper, OPT
# after ma-xu/pointMLP-pytorch issue 30 (https://github.com/ma-xu/pointMLP-pytorch/issues/30), the shapes of the stages are those logged there; there on an RTX 3080 Ti with 12 GB, here on a smaller card
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import knobs

BATCH = int(os.environ.get("BATCH", 32))
POINTS = int(os.environ.get("POINTS", 1024))
K = int(os.environ.get("K", 24))
CLASSES = 40


class FakeModelNet40(Dataset):
    def __len__(self):
        return 3 * BATCH

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(POINTS, 3, generator=g), i % CLASSES


def index_points(points, idx):
    b = torch.arange(points.shape[0], device=points.device).view(-1, *[1] * (idx.dim() - 1))
    return points[b, idx]


def farthest_or_random(xyz, n):
    """Random instead of farthest points: the same shapes, fewer kernels."""
    return torch.rand(xyz.shape[:2], device=xyz.device).topk(n, dim=1).indices


def knn(k, xyz, new_xyz):
    dist = -2 * new_xyz @ xyz.transpose(1, 2)
    dist = dist + (new_xyz ** 2).sum(-1, keepdim=True) + (xyz ** 2).sum(-1)[:, None]
    return dist.topk(k, dim=-1, largest=False, sorted=False).indices


class LocalGrouper(nn.Module):
    """Groups each anchor's neighbours and normalises them affinely (the paper's geometric affine module)."""

    def __init__(self, channels, groups):
        super().__init__()
        self.groups = groups
        self.alpha = nn.Parameter(torch.ones(1, 1, 1, channels))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, channels))

    def forward(self, xyz, feats):
        idx = farthest_or_random(xyz, self.groups)
        new_xyz, new_feats = index_points(xyz, idx), index_points(feats, idx)
        grouped = index_points(feats, knn(K, xyz, new_xyz))
        mean = grouped.mean(dim=2, keepdim=True)
        std = (grouped - mean).reshape(len(xyz), -1).std(dim=-1)[:, None, None, None]
        grouped = self.alpha * ((grouped - mean) / (std + 1e-5)) + self.beta
        centre = new_feats.unsqueeze(2).expand(-1, -1, K, -1)
        return new_xyz, torch.cat([grouped, centre], dim=-1)


def conv_bn(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU(inplace=True))


class ConvBNReLURes1D(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net1 = conv_bn(channels, channels)
        self.net2 = nn.Sequential(nn.Conv1d(channels, channels, 1), nn.BatchNorm1d(channels))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.net2(self.net1(x)) + x)


class PreExtraction(nn.Module):
    def __init__(self, i, o, blocks=2):
        super().__init__()
        self.transfer = conv_bn(i, o)
        self.operation = nn.Sequential(*[ConvBNReLURes1D(o) for _ in range(blocks)])

    def forward(self, x):
        b, n, s, d = x.shape
        x = self.operation(self.transfer(x.permute(0, 1, 3, 2).reshape(b * n, d, s)))
        return F.adaptive_max_pool1d(x, 1).view(b, n, -1).permute(0, 2, 1)


class PointMLP(nn.Module):
    def __init__(self, dim=64, stages=4):
        super().__init__()
        self.embedding = conv_bn(3, dim)
        self.groupers, self.pre_blocks, self.pos_blocks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        n = POINTS
        for _ in range(stages):
            n //= 2
            self.groupers.append(LocalGrouper(dim, n))
            self.pre_blocks.append(PreExtraction(dim * 2, dim * 2))
            dim *= 2
            self.pos_blocks.append(nn.Sequential(*[ConvBNReLURes1D(dim) for _ in range(2)]))
        self.classifier = nn.Sequential(nn.Linear(dim, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.5),
                                        nn.Linear(512, CLASSES))

    def forward(self, xyz):
        x = self.embedding(xyz.transpose(1, 2))
        for grouper, pre, pos in zip(self.groupers, self.pre_blocks, self.pos_blocks):
            xyz, x = grouper(xyz, x.transpose(1, 2))
            x = pos(pre(x))
        return self.classifier(F.adaptive_max_pool1d(x, 1).squeeze(-1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(FakeModelNet40(), batch_size=BATCH, shuffle=True, drop_last=True)
    net = knobs.apply(PointMLP().cuda())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    net.train()
    for i, (points, label) in enumerate(loader):
        points, label = points.cuda(), label.cuda()
        optimizer.zero_grad()
        with knobs.autocast():
            loss = F.cross_entropy(net(points).float(), label, label_smoothing=0.2)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1)
        optimizer.step()
        print(f"batch {i} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
