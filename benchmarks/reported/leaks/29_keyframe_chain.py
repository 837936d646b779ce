# kind: each keyframe points to the one before it, a linked list without end; from SLAM issues (DeepFactors, MASt3R-SLAM, append-only keyframes)
from __future__ import annotations
from dataclasses import dataclass
from typing import Optional
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(eq=False)
class Keyframe:
    idx: int
    pose: tuple
    image: torch.Tensor
    feats: torch.Tensor
    depth: torch.Tensor
    prev: Optional[Keyframe] = None

    def distance(self, pose):
        return math.dist(self.pose[:2], pose[:2]) + 0.5 * abs(self.pose[2] - pose[2])


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(16, dim, 3, padding=1)
        self.depth = nn.Conv2d(dim, 1, 1)

    def forward(self, x):
        f = self.c2(F.relu(self.c1(x)))
        return f, F.softplus(self.depth(f))


class Odometry:
    def __init__(self, device, min_motion=0.25, window=4):
        self.net = Encoder().to(device).eval()
        self.min_motion, self.window = min_motion, window
        self.last: Optional[Keyframe] = None
        self.n_keyframes = 0

    def local_map(self):
        kf, out = self.last, []
        while kf is not None and len(out) < self.window:
            out.append(kf)
            kf = kf.prev
        return out

    @torch.no_grad()
    def track(self, image, pose):
        feats, depth = self.net(image)
        residual = image.new_zeros(())
        for kf in self.local_map():
            residual = residual + (F.normalize(kf.feats, dim=1) - F.normalize(feats, dim=1)).abs().mean()
        if self.last is None or self.last.distance(pose) > self.min_motion:
            self.last = Keyframe(self.n_keyframes, pose, image, feats, depth, prev=self.last)  # LEAK
            self.n_keyframes += 1
        return residual


def trajectory(n):
    for t in range(n):
        a = 2 * math.pi * t / 60
        yield (2 * math.cos(a), 2 * math.sin(a), a)


device = torch.device("cuda")
vo = Odometry(device)
errors = []
for t, pose in enumerate(trajectory(160)):
    frame = torch.rand(1, 3, 96, 128).to(device)
    errors.append(float(vo.track(frame, pose)))
    if t % 40 == 0:
        print(f"frame {t}: {vo.n_keyframes} keyframes, local map {[k.idx for k in vo.local_map()]}")
