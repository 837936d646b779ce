# CARD: 6GiB
# KNOBS: BATCH=<pairs>, CHECKPOINT=1 (hourglasses and feature stages), AUTOCAST=1, CROP=<height of the crop, width is twice>, FUSED=1
# EXPERT: 4-D cost volume with 3-D convolutions: smaller batch, or checkpoint the 3-D hourglasses; mixed precision, smaller crop
# from: https://github.com/JiaRenChang/PSMNet/issues/216
import atexit
import os
from dataclasses import dataclass, field
from typing import List

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class StereoConfig:
    maxdisp: int = 192
    width: int = 32
    batch: int = int(os.getenv("BATCH", "4"))
    crop: int = int(os.getenv("CROP", "256"))
    steps: int = 3
    loss_weights: List[float] = field(default_factory=lambda: [0.5, 0.7, 1.0])
    use_checkpoint: bool = os.getenv("CHECKPOINT") == "1"
    amp: bool = os.getenv("AUTOCAST") == "1"
    fused: bool = os.getenv("FUSED") == "1"


def convbn(dim, i, o, k=3, s=1, act=True):
    conv = {2: nn.Conv2d, 3: nn.Conv3d}[dim]
    bn = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dim]
    layers = [conv(i, o, k, s, k // 2, bias=False), bn(o)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if act else nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, i, o, s=1):
        super().__init__()
        self.a, self.b = convbn(2, i, o, s=s), convbn(2, o, o, act=False)
        self.skip = convbn(2, i, o, 1, s, act=False) if i != o or s != 1 else nn.Identity()

    def forward(self, x):
        return self.b(self.a(x)) + self.skip(x)


class Features(nn.Sequential):
    def __init__(self, w):
        super().__init__(
            nn.Sequential(convbn(2, 3, w, s=2), convbn(2, w, w), convbn(2, w, w)),
            nn.Sequential(*[Residual(w, w) for _ in range(3)]),
            nn.Sequential(Residual(w, 2 * w, 2), *[Residual(2 * w, 2 * w) for _ in range(7)]),
            nn.Sequential(Residual(2 * w, 4 * w), *[Residual(4 * w, 4 * w) for _ in range(3)]),
            nn.Conv2d(4 * w, w, 1),
        )


class Hourglass(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.down1 = nn.Sequential(convbn(3, w, 2 * w, s=2), convbn(3, 2 * w, 2 * w))
        self.down2 = nn.Sequential(convbn(3, 2 * w, 2 * w, s=2), convbn(3, 2 * w, 2 * w))
        self.up1 = nn.ConvTranspose3d(2 * w, 2 * w, 3, 2, 1, output_padding=1, bias=False)
        self.up2 = nn.ConvTranspose3d(2 * w, w, 3, 2, 1, output_padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm3d(2 * w), nn.BatchNorm3d(w)

    def forward(self, x: Tensor) -> Tensor:
        d1 = self.down1(x)
        u1 = F.relu(self.bn1(self.up1(self.down2(d1))) + d1, inplace=True)
        return self.bn2(self.up2(u1)) + x


class PSMNet(nn.Module):
    def __init__(self, cfg: StereoConfig):
        super().__init__()
        w = cfg.width
        self.cfg = cfg
        self.features = Features(w)
        self.dres0 = nn.Sequential(convbn(3, 2 * w, w), convbn(3, w, w))
        self.dres1 = nn.Sequential(convbn(3, w, w), convbn(3, w, w, act=False))
        self.hourglasses = nn.ModuleList(Hourglass(w) for _ in range(3))
        self.classif = nn.ModuleList(
            nn.Sequential(convbn(3, w, w), nn.Conv3d(w, 1, 3, padding=1, bias=False)) for _ in range(3))

    def _run(self, module, x):
        return checkpoint(module, x, use_reentrant=False) if self.cfg.use_checkpoint else module(x)

    def cost_volume(self, left, right):
        b, c, h, w = left.shape
        cost = left.new_zeros(b, 2 * c, self.cfg.maxdisp // 4, h, w)
        for d in range(self.cfg.maxdisp // 4):
            if d:
                cost[:, :c, d, :, d:] = left[..., d:]
                cost[:, c:, d, :, d:] = right[..., :-d]
            else:
                cost[:, :c, d], cost[:, c:, d] = left, right
        return cost.contiguous()

    def regress(self, cost, size):
        cost = F.interpolate(cost, (self.cfg.maxdisp, *size), mode="trilinear", align_corners=False).squeeze(1)
        p = F.softmax(cost.float(), 1)
        disp = torch.arange(self.cfg.maxdisp, device=p.device, dtype=p.dtype)[None, :, None, None]
        return (p * disp).sum(1)

    def forward(self, left, right):
        def feats(x):
            for stage in self.features:
                x = self._run(stage, x)
            return x
        x = self.dres0(self.cost_volume(feats(left), feats(right)))
        x = self.dres1(x) + x
        outs, prev = [], 0
        for hg, head in zip(self.hourglasses, self.classif):
            x = self._run(hg, x)
            prev = head(x) + prev
            outs.append(self.regress(prev, left.shape[-2:]))
        return outs


def main(cfg: StereoConfig):
    atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))
    net = PSMNet(cfg).cuda().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.9, 0.999), fused=cfg.fused or None)
    shape = (cfg.batch, 3, cfg.crop, 2 * cfg.crop)
    for i in range(cfg.steps):
        left, right = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
        truth = torch.rand(shape[0], *shape[2:], device="cuda") * 190
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=cfg.amp):
            outs = net(left, right)
        loss = sum(w * F.smooth_l1_loss(o, truth) for w, o in zip(cfg.loss_weights, outs))
        loss.backward()
        optimizer.step()
        print("Iter %d training loss = %.3f" % (i, loss.item()))


if __name__ == "__main__":
    main(StereoConfig())
