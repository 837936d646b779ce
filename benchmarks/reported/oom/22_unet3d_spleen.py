# CARD: 10GiB
# KNOBS: BATCH=2 PATCH=128 AUTOCAST CHECKPOINT=ConvBlock3D CHECKPOINT_PATHS=enc.0,dec.2 BCE OPT FUSED
# EXPERT: full-resolution 3D feature maps of the first and last level at 160x160x128 patches; smaller patch or batch 1, AMP, checkpoint the blocks; swapping the loss or optimizer is not enough
# Source: 3D U-Net on CT volumes running out on a 40 GB card with cross entropy, "use BCE, fewer channels" (amir-aghdam/3D-UNet 2; bigmb Nest-of-Unets 27)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import knobs

CFG = {
    "in_channels": 1,
    "num_classes": 14,
    "level_channels": [32, 64, 128],
    "bottleneck_channel": 256,
    "patch": int(os.environ.get("PATCH", 128)),
    "batch_size": int(os.environ.get("BATCH", 2)),
    "lr": 1e-3,
    "epochs": 1,
    "use_bce": os.environ.get("BCE", "0") == "1",
}


class ConvBlock3D(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv3d(cin, cout // 2, 3, padding=1)
        self.bn1 = nn.BatchNorm3d(cout // 2)
        self.conv2 = nn.Conv3d(cout // 2, cout, 3, padding=1)
        self.bn2 = nn.BatchNorm3d(cout)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)))


class UNet3D(nn.Module):
    def __init__(self, in_channels, num_classes, level_channels, bottleneck_channel):
        super().__init__()
        chans = [in_channels] + level_channels
        self.enc = nn.ModuleList(ConvBlock3D(a, b) for a, b in zip(chans, chans[1:]))
        self.pool = nn.MaxPool3d(2)
        self.bottleneck = ConvBlock3D(level_channels[-1], bottleneck_channel)
        ups, decs, c = [], [], bottleneck_channel
        for skip in reversed(level_channels):
            ups.append(nn.ConvTranspose3d(c, c, 2, stride=2))
            decs.append(ConvBlock3D(c + skip, skip))
            c = skip
        self.ups, self.dec = nn.ModuleList(ups), nn.ModuleList(decs)
        self.head = nn.Conv3d(c, num_classes, 1)

    def forward(self, x):
        skips = []
        for block in self.enc:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottleneck(x)
        for up, block in zip(self.ups, self.dec):
            x = block(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


class SpleenPatches(Dataset):
    def __init__(self, n, patch, num_classes):
        self.n, self.shape, self.k = n, (patch + 32, patch + 32, patch), num_classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        image = torch.zeros(1, *self.shape)
        label = torch.zeros(self.shape, dtype=torch.long)
        label[8:24, 8:24, 8:24] = i % self.k
        return image, label


def dice_loss(logits, onehot, eps=1e-5):
    probs = logits.softmax(1)
    dims = (0, 2, 3, 4)
    inter = (probs * onehot).sum(dims)
    return 1 - ((2 * inter + eps) / (probs.sum(dims) + onehot.sum(dims) + eps)).mean()


def criterion(logits, target):
    onehot = F.one_hot(target, CFG["num_classes"]).permute(0, 4, 1, 2, 3).float()
    if CFG["use_bce"]:
        return F.binary_cross_entropy_with_logits(logits, onehot)
    return F.cross_entropy(logits, target) + dice_loss(logits, onehot)


def main():
    device = torch.device("cuda:0")
    net = UNet3D(CFG["in_channels"], CFG["num_classes"], CFG["level_channels"], CFG["bottleneck_channel"])
    net = knobs.apply(net.to(device))
    optimizer = torch.optim.Adam(net.parameters(), lr=CFG["lr"])
    loader = DataLoader(SpleenPatches(6, CFG["patch"], CFG["num_classes"]), batch_size=CFG["batch_size"])
    for epoch in range(CFG["epochs"]):
        train_loss = 0.0
        net.train()
        for image, label in loader:
            image, label = image.to(device), label.to(device)
            optimizer.zero_grad()
            with knobs.autocast():
                target = net(image)
                loss = criterion(target, label)
            train_loss += loss.item()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: {train_loss / len(loader):.4f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
