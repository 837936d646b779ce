# CARD: 24GiB
# KNOBS: BATCH=2 PATCH=256,256,64 LEVELS=64,128,256 BOTTLENECK=512 AUTOCAST CHECKPOINT=Conv3DBlock,UpConv3DBlock OPT FUSED
# EXPERT: the activations of the first and the last level of the 3-D U-Net at full resolution (64 channels x 256 x 256 x 64, 1 GiB for each image, kept by convolution, normalization and ReLU) and the concatenation with the skip; batch 1, a patch of 160x160x64, half the channels, bf16 autocast, or checkpoint the encoder and the decoder blocks together; checkpointing only the encoder or only the decoder blocks or another optimizer is not enough
# Source: amir-aghdam/3D-UNet 2 (spleen CT, out of memory on an A100 with 40 GB; it ran with level_channels [8, 16, 32]), Thvnvtos/Lung_Segmentation 7 (batch 1 on 8 GB, 'it needs 32 GB'); written by hand
import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

import knobs

# ---- config.py
NUM_CLASSES = 2
IN_CHANNELS = 1
LEVELS = [int(c) for c in os.environ.get("LEVELS", "64,128,256").split(",")]
BOTTLENECK = int(os.environ.get("BOTTLENECK", 512))
PATCH = tuple(int(c) for c in os.environ.get("PATCH", "256,256,64").split(","))


class Conv3DBlock(nn.Module):
    def __init__(self, cin, cout, bottleneck=False):
        super().__init__()
        self.conv1 = nn.Conv3d(cin, cout // 2, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm3d(cout // 2)
        self.conv2 = nn.Conv3d(cout // 2, cout, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm3d(cout)
        self.relu = nn.ReLU()
        self.pool = None if bottleneck else nn.MaxPool3d(2, 2)

    def forward(self, x):
        skip = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return (skip if self.pool is None else self.pool(skip)), skip


class UpConv3DBlock(nn.Module):
    def __init__(self, cin, cskip, num_classes=None):
        super().__init__()
        self.up = nn.ConvTranspose3d(cin, cin, 2, 2)
        self.relu, self.bn = nn.ReLU(), nn.BatchNorm3d(cin // 2)
        self.conv1 = nn.Conv3d(cin + cskip, cin // 2, 3, padding=1)
        self.conv2 = nn.Conv3d(cin // 2, cin // 2, 3, padding=1)
        self.head = nn.Conv3d(cin // 2, num_classes, 1) if num_classes else None

    def forward(self, x, skip):
        x = torch.cat((self.up(x), skip), 1)
        x = self.relu(self.bn(self.conv1(x)))
        x = self.relu(self.bn(self.conv2(x)))
        return x if self.head is None else self.head(x)


class UNet3D(nn.Module):
    def __init__(self, cin, num_classes, levels, bottleneck):
        super().__init__()
        a, b, c = levels
        self.a1, self.a2, self.a3 = Conv3DBlock(cin, a), Conv3DBlock(a, b), Conv3DBlock(b, c)
        self.bottleneck = Conv3DBlock(c, bottleneck, bottleneck=True)
        self.s3 = UpConv3DBlock(bottleneck, c)
        self.s2 = UpConv3DBlock(bottleneck // 2, b)
        self.s1 = UpConv3DBlock(bottleneck // 4, a, num_classes)

    def forward(self, x):
        x, r1 = self.a1(x)
        x, r2 = self.a2(x)
        x, r3 = self.a3(x)
        x, _ = self.bottleneck(x)
        return self.s1(self.s2(self.s3(x, r3), r2), r1)


class Spleen(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"image": torch.randn(1, *PATCH, generator=g), "label": (torch.rand(PATCH, generator=g) > 0.9).long()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train-batch-size", type=int, default=int(os.environ.get("BATCH", 2)))
    p.add_argument("--val-batch-size", type=int, default=1)
    p.add_argument("--steps", type=int, default=2)
    args = p.parse_args()
    model = knobs.apply(UNet3D(IN_CHANNELS, NUM_CLASSES, LEVELS, BOTTLENECK).cuda())
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 0.7]).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Spleen(args.steps * args.train_batch_size), args.train_batch_size, shuffle=True)
    val_loader = DataLoader(Spleen(1), args.val_batch_size)
    model.train()
    total = 0.0
    for step, data in enumerate(loader):
        image, target = data["image"].cuda(), data["label"].cuda()
        with knobs.autocast():
            pred = model(image)
        loss = criterion(pred.float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        for data in val_loader:
            val = criterion(model(data["image"].cuda()), data["label"].cuda()).item()
    print(f"train {total / (step + 1):.4f} val {val:.4f}")


if __name__ == "__main__":
    main()
