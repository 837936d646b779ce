# CARD: 12GiB
# KNOBS: BATCH=2 EVAL_SCALE=1.0 MAXDISP=192 EVAL_MAXDISP=256 AUTOCAST CHECKPOINT=Hourglass,BasicBlock OPT FUSED
# EXPERT: training on 256x512 crops fits; the evaluation on full-resolution pairs builds a 64-channel cost volume of disparities/4 x H/4 x W/4, its 3D convolutions and then (disparities, H, W) probabilities, though under no_grad and with one image; evaluate at a smaller scale (0.75, 0.5), in tiles or with a maximum disparity of 128; 192 disparities or autocast alone is not enough, the training batch, checkpointing and the optimizer have no influence
# Source: JiaRenChang/PSMNet 91 (training fits, the same network is out of memory in the test of 3000x3000 pictures), 143; xy-guo/MVSNet_pytorch 3 (eval at 1200x1600); written by hand
from __future__ import annotations

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 2))
MAXDISP = int(os.environ.get("MAXDISP", 192))
EVAL_MAXDISP = int(os.environ.get("EVAL_MAXDISP", 256))
EVAL_SCALE = float(os.environ.get("EVAL_SCALE", 1.0))
CROP = (256, 512)
FULL = (1440, 2048)


def convbn(i, o, k, s, p, d=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, d if d > 1 else p, d, bias=False), nn.BatchNorm2d(o))


def convbn_3d(i, o, k, s, p):
    return nn.Sequential(nn.Conv3d(i, o, k, s, p, bias=False), nn.BatchNorm3d(o))


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Sequential(convbn(i, o, 3, stride, 1, dilation), nn.ReLU(inplace=True))
        self.conv2 = convbn(o, o, 3, 1, 1, dilation)
        self.downsample = None if i == o and stride == 1 else convbn(i, o, 1, stride, 0)

    def forward(self, x):
        out = self.conv2(self.conv1(x))
        return out + (x if self.downsample is None else self.downsample(x))


def make_layer(i, o, n, stride, dilation):
    return nn.Sequential(BasicBlock(i, o, stride, dilation), *[BasicBlock(o, o, 1, dilation) for _ in range(n - 1)])


class FeatureExtraction(nn.Module):
    def __init__(self):
        super().__init__()
        relu = lambda: nn.ReLU(inplace=True)
        self.firstconv = nn.Sequential(convbn(3, 32, 3, 2, 1), relu(), convbn(32, 32, 3, 1, 1), relu(), convbn(32, 32, 3, 1, 1), relu())
        self.layer1, self.layer2 = make_layer(32, 32, 3, 1, 1), make_layer(32, 64, 16, 2, 1)
        self.layer3, self.layer4 = make_layer(64, 128, 3, 1, 1), make_layer(128, 128, 3, 1, 2)
        self.branches = nn.ModuleList(nn.Sequential(nn.AvgPool2d(k, k), convbn(128, 32, 1, 1, 0), relu()) for k in (64, 32, 16, 8))
        self.lastconv = nn.Sequential(convbn(320, 128, 3, 1, 1), relu(), nn.Conv2d(128, 32, 1, bias=False))

    def forward(self, x):
        raw = self.layer2(self.layer1(self.firstconv(x)))
        skip = self.layer4(self.layer3(raw))
        spp = [F.interpolate(b(skip), skip.shape[2:], mode="bilinear", align_corners=False) for b in self.branches]
        return self.lastconv(torch.cat([raw, skip] + spp[::-1], 1))


class Hourglass(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Sequential(convbn_3d(c, 2 * c, 3, 2, 1), nn.ReLU(inplace=True))
        self.conv2 = convbn_3d(2 * c, 2 * c, 3, 1, 1)
        self.conv3 = nn.Sequential(convbn_3d(2 * c, 2 * c, 3, 2, 1), nn.ReLU(inplace=True))
        self.conv4 = nn.Sequential(convbn_3d(2 * c, 2 * c, 3, 1, 1), nn.ReLU(inplace=True))
        self.conv5 = nn.Sequential(nn.ConvTranspose3d(2 * c, 2 * c, 3, 2, 1, 1, bias=False), nn.BatchNorm3d(2 * c))
        self.conv6 = nn.Sequential(nn.ConvTranspose3d(2 * c, c, 3, 2, 1, 1, bias=False), nn.BatchNorm3d(c))

    def forward(self, x, presqu, postsqu):
        out = self.conv1(x)
        pre = self.conv2(out)
        pre = F.relu(pre if postsqu is None else pre + postsqu, inplace=True)
        out = self.conv4(self.conv3(pre))
        post = F.relu(self.conv5(out) + (pre if presqu is None else presqu), inplace=True)
        return self.conv6(post), pre, post


class PSMNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature_extraction = FeatureExtraction()
        relu = lambda: nn.ReLU(inplace=True)
        self.dres0 = nn.Sequential(convbn_3d(64, 32, 3, 1, 1), relu(), convbn_3d(32, 32, 3, 1, 1), relu())
        self.dres1 = nn.Sequential(convbn_3d(32, 32, 3, 1, 1), relu(), convbn_3d(32, 32, 3, 1, 1))
        self.dres2, self.dres3, self.dres4 = Hourglass(32), Hourglass(32), Hourglass(32)
        self.classif1, self.classif2, self.classif3 = (
            nn.Sequential(convbn_3d(32, 32, 3, 1, 1), relu(), nn.Conv3d(32, 1, 3, 1, 1, bias=False)) for _ in range(3))

    def regress(self, cost, maxdisp, size):
        cost = F.interpolate(cost, [maxdisp, *size], mode="trilinear", align_corners=False).squeeze(1)
        pred = F.softmax(cost, dim=1)
        disp = torch.arange(maxdisp, device=cost.device, dtype=torch.float32).view(1, -1, 1, 1)
        return torch.sum(pred * disp, 1)

    def forward(self, left, right, maxdisp):
        ref, tgt = self.feature_extraction(left), self.feature_extraction(right)
        b, c, h, w = ref.shape
        cost = ref.new_zeros(b, 2 * c, maxdisp // 4, h, w)
        for i in range(maxdisp // 4):
            cost[:, :c, i, :, i:] = ref[:, :, :, i:]
            cost[:, c:, i, :, i:] = tgt[:, :, :, :w - i] if i else tgt
        cost0 = self.dres0(cost)
        cost0 = self.dres1(cost0) + cost0
        out1, pre1, post1 = self.dres2(cost0, None, None)
        out1 = out1 + cost0
        out2, pre2, post2 = self.dres3(out1, pre1, post1)
        out2 = out2 + cost0
        out3, _, _ = self.dres4(out2, pre1, post2)
        out3 = out3 + cost0
        cost1 = self.classif1(out1)
        cost2 = self.classif2(out2) + cost1
        cost3 = self.classif3(out3) + cost2
        size = left.shape[2:]
        if self.training:
            return tuple(self.regress(x, maxdisp, size) for x in (cost1, cost2, cost3))
        return self.regress(cost3, maxdisp, size)


model = knobs.apply(PSMNet().cuda())
optimizer = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.999))


def train(imgL, imgR, disp):
    model.train()
    imgL, imgR, disp = imgL.cuda(), imgR.cuda(), disp.cuda()
    optimizer.zero_grad()
    with knobs.autocast():
        o1, o2, o3 = model(imgL, imgR, MAXDISP)
    valid = (disp < MAXDISP).float()
    loss = sum(w * (F.smooth_l1_loss(o.float(), disp, reduction="none") * valid).sum() / valid.sum().clamp(min=1)
               for w, o in ((0.5, o1), (0.7, o2), (1.0, o3)))
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(imgL, imgR, disp):
    model.eval()
    imgL, imgR, disp = imgL.cuda(), imgR.cuda(), disp.cuda()
    size = [int(s * EVAL_SCALE) // 64 * 64 for s in imgL.shape[2:]]
    top, right = -imgL.shape[2] % 64, -imgL.shape[3] % 64
    if EVAL_SCALE == 1.0:
        imgL, imgR = F.pad(imgL, (0, right, top, 0)), F.pad(imgR, (0, right, top, 0))
    else:
        imgL, imgR = (F.interpolate(i, size, mode="bilinear", align_corners=False) for i in (imgL, imgR))
    maxdisp = max(64, int(EVAL_MAXDISP * EVAL_SCALE) // 16 * 16)
    with knobs.autocast():
        out = model(imgL, imgR, maxdisp).float()
    if EVAL_SCALE == 1.0:
        out = out[:, top:, :out.shape[2] - right]
    else:
        out = F.interpolate(out.unsqueeze(1), disp.shape[1:], mode="bilinear", align_corners=False).squeeze(1) / EVAL_SCALE
    return ((out - disp).abs() > 3).float().mean().item()


for epoch in range(2):
    for it in range(2):
        loss = train(torch.randn(BATCH, 3, *CROP), torch.randn(BATCH, 3, *CROP), torch.rand(BATCH, *CROP) * 200)
        print("epoch", epoch, "iter", it, "loss %.3f" % loss)
    errors = [test(torch.randn(1, 3, *FULL), torch.randn(1, 3, *FULL), torch.rand(1, *FULL) * 200) for _ in range(2)]
    print("epoch", epoch, "3-px error", sum(errors) / len(errors))
