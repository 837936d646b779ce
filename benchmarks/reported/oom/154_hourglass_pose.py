# CARD: 8GiB
# KNOBS: BATCH=4,8 CHECKPOINT=Residual,Hourglass AUTOCAST=1
# EXPERT: eight stacked hourglasses in fp32 at 256x256, the activations are all; batch 8 or checkpoint per hourglass, the weights are small
# in the manner of a GitHub issue of a stacked hourglass reimplementation "batch 24 runs on the 16GB card at work, I have a 2070"
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        mid = cout // 2
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, mid, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(mid), nn.Conv2d(mid, mid, 3, padding=1)
        self.bn3, self.conv3 = nn.BatchNorm2d(mid), nn.Conv2d(mid, cout, 1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        h = self.conv1(F.relu(self.bn1(x)))
        h = self.conv2(F.relu(self.bn2(h)))
        h = self.conv3(F.relu(self.bn3(h)))
        return h + self.skip(x)


class Hourglass(nn.Module):
    def __init__(self, depth, f):
        super().__init__()
        self.up, self.low1, self.low3 = Residual(f, f), Residual(f, f), Residual(f, f)
        self.low2 = Hourglass(depth - 1, f) if depth > 1 else Residual(f, f)

    def forward(self, x):
        low = self.low3(self.low2(self.low1(F.max_pool2d(x, 2))))
        return self.up(x) + F.interpolate(low, scale_factor=2, mode="nearest")


class PoseNet(nn.Module):
    def __init__(self, nstack=8, f=256, joints=16):
        super().__init__()
        self.pre = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), Residual(64, 128),
                                 nn.MaxPool2d(2), Residual(128, 128), Residual(128, f))
        self.hgs = nn.ModuleList(Hourglass(4, f) for _ in range(nstack))
        self.features = nn.ModuleList(nn.Sequential(Residual(f, f), nn.Conv2d(f, f, 1), nn.BatchNorm2d(f), nn.ReLU())
                                      for _ in range(nstack))
        self.outs = nn.ModuleList(nn.Conv2d(f, joints, 1) for _ in range(nstack))
        self.merge_f = nn.ModuleList(nn.Conv2d(f, f, 1) for _ in range(nstack - 1))
        self.merge_p = nn.ModuleList(nn.Conv2d(joints, f, 1) for _ in range(nstack - 1))

    def forward(self, x):
        x = self.pre(x)
        preds = []
        for i, hg in enumerate(self.hgs):
            feat = self.features[i](hg(x))
            preds.append(self.outs[i](feat))
            if i < len(self.hgs) - 1:
                x = x + self.merge_f[i](feat) + self.merge_p[i](preds[-1])
        return torch.stack(preds, 1)


def apply_checkpoint(net, name):
    cls = {"Residual": Residual, "Hourglass": Hourglass}[name]
    plain = cls.__call__
    inside = []

    def alone(self, *args):
        inside.append(1)
        try:
            return plain(self, *args)
        finally:
            inside.pop()

    def call(self, *args):
        if inside:
            return plain(self, *args)
        return checkpoint(lambda *a: alone(self, *a), *args, use_reentrant=False)
    cls.__call__ = call


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=int(os.environ.get("BATCH", 24)))
    ap.add_argument("--iters", type=int, default=3)
    cfg = ap.parse_args()
    net = PoseNet().cuda()
    if os.environ.get("CHECKPOINT"):
        apply_checkpoint(net, os.environ["CHECKPOINT"])
    opt = torch.optim.RMSprop(net.parameters(), lr=2.5e-4)
    for _ in range(cfg.iters):
        img = torch.rand(cfg.batch, 3, 256, 256, device="cuda")
        heat = torch.rand(cfg.batch, 16, 64, 64, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=os.environ.get("AUTOCAST") == "1"):
            out = net(img)
            loss = ((out - heat[:, None]) ** 2).mean((0, 2, 3, 4)).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("PEAK", torch.cuda.max_memory_allocated())
