# CARD: 12GiB
# KNOBS: BATCH=4 FRAMES=30 AUTOCAST CHECKPOINT=ResidualBlocks MID=64
# EXPERT: activations of 2 x 30 residual blocks for each of 30 frames in both directions, and features at full resolution; enough: CHECKPOINT=ResidualBlocks (per frame), FRAMES=15, BATCH=2, AUTOCAST; not enough: CHECKPOINT=ResidualBlock (saves each block's input and the upsampling stays), MID=32; weights and Adam are tiny
# Source: open-mmlab/mmagic 753 (training BasicVSR on a 2080 Ti runs out of memory even with fewer channels; answer: reduce the frames from 30 to 15 or 10); plain PyTorch
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 4))
FRAMES = int(os.environ.get("FRAMES", 30))
MID = int(os.environ.get("MID", 64))
LQ = 64


def flow_warp(x, flow):
    n, _, h, w = x.shape
    ys, xs = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    grid = torch.stack((xs, ys), -1).to(x.dtype) + flow.permute(0, 2, 3, 1)
    gx = 2.0 * grid[..., 0] / max(w - 1, 1) - 1.0
    gy = 2.0 * grid[..., 1] / max(h - 1, 1) - 1.0
    return F.grid_sample(x, torch.stack((gx, gy), -1).to(x.dtype), padding_mode="border", align_corners=True)


class BasicModule(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [8, 32, 64, 32, 16, 2]
        layers = []
        for i, (a, b) in enumerate(zip(chans[:-1], chans[1:])):
            layers.append(nn.Conv2d(a, b, 7, 1, 3))
            if i < 4:
                layers.append(nn.ReLU(inplace=True))
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return self.body(x)


class SPyNet(nn.Module):
    def __init__(self, levels=4):
        super().__init__()
        self.levels = nn.ModuleList(BasicModule() for _ in range(levels))

    def forward(self, ref, supp):
        refs, supps = [ref], [supp]
        for _ in range(len(self.levels) - 1):
            refs.insert(0, F.avg_pool2d(refs[0], 2, 2))
            supps.insert(0, F.avg_pool2d(supps[0], 2, 2))
        n, _, h, w = refs[0].shape
        flow = refs[0].new_zeros(n, 2, h, w)
        for i, level in enumerate(self.levels):
            if i > 0:
                flow = F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True) * 2.0
            flow = flow + level(torch.cat([refs[i], flow_warp(supps[i], flow), flow], 1))
        return flow


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, 1, 1)
        self.conv2 = nn.Conv2d(c, c, 3, 1, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return x + self.conv2(self.relu(self.conv1(x)))


class ResidualBlocks(nn.Module):
    def __init__(self, c_in, c, n):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(c_in, c, 3, 1, 1), nn.LeakyReLU(0.1, inplace=True),
                                  *[ResidualBlock(c) for _ in range(n)])

    def forward(self, x):
        return self.main(x)


class BasicVSR(nn.Module):
    def __init__(self, mid=64, blocks=30):
        super().__init__()
        self.mid = mid
        self.spynet = SPyNet()
        self.backward_resblocks = ResidualBlocks(mid + 3, mid, blocks)
        self.forward_resblocks = ResidualBlocks(mid + 3, mid, blocks)
        self.fusion = nn.Conv2d(mid * 2, mid, 1)
        self.upsample1 = nn.Sequential(nn.Conv2d(mid, mid * 4, 3, 1, 1), nn.PixelShuffle(2))
        self.upsample2 = nn.Sequential(nn.Conv2d(mid, 64 * 4, 3, 1, 1), nn.PixelShuffle(2))
        self.conv_hr = nn.Conv2d(64, 64, 3, 1, 1)
        self.conv_last = nn.Conv2d(64, 3, 3, 1, 1)
        self.lrelu = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, lrs):
        n, t, c, h, w = lrs.shape
        first = lrs[:, :-1].reshape(-1, c, h, w)
        second = lrs[:, 1:].reshape(-1, c, h, w)
        flows_backward = self.spynet(first, second).view(n, t - 1, 2, h, w)
        flows_forward = self.spynet(second, first).view(n, t - 1, 2, h, w)

        backs = []
        feat = lrs.new_zeros(n, self.mid, h, w)
        for i in range(t - 1, -1, -1):
            if i < t - 1:
                feat = flow_warp(feat, flows_backward[:, i])
            feat = self.backward_resblocks(torch.cat([lrs[:, i], feat], 1))
            backs.append(feat)
        backs = backs[::-1]

        outputs = []
        feat = torch.zeros_like(feat)
        for i in range(t):
            if i > 0:
                feat = flow_warp(feat, flows_forward[:, i - 1])
            feat = self.forward_resblocks(torch.cat([lrs[:, i], feat], 1))
            out = self.lrelu(self.fusion(torch.cat([backs[i], feat], 1)))
            out = self.lrelu(self.upsample1(out))
            out = self.lrelu(self.upsample2(out))
            out = self.conv_last(self.lrelu(self.conv_hr(out)))
            outputs.append(out + F.interpolate(lrs[:, i], scale_factor=4, mode="bilinear", align_corners=False))
        return torch.stack(outputs, 1)


def charbonnier(x, y, eps=1e-12):
    return torch.sqrt((x - y) ** 2 + eps).mean()


torch.manual_seed(0)
with torch.device("cuda"):
    model = BasicVSR(mid=MID)
knobs.apply(model)
spynet_params = list(model.spynet.parameters())
other = [p for n, p in model.named_parameters() if not n.startswith("spynet")]
optimizer = torch.optim.Adam([{"params": other, "lr": 2e-4}, {"params": spynet_params, "lr": 2.5e-5}], betas=(0.9, 0.99))

for it in range(4):
    lq = torch.rand(BATCH, FRAMES, 3, LQ, LQ, device="cuda")
    gt = torch.rand(BATCH, FRAMES, 3, LQ * 4, LQ * 4, device="cuda")
    with knobs.autocast():
        loss = charbonnier(model(lq), gt)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {it}: loss {loss.item():.4f}")
