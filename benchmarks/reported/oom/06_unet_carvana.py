# CARD: 11GiB
# KNOBS: BATCH=8 AUTOCAST CHECKPOINT=DoubleConv CHECKPOINT_PATHS=contracting.*,expanding.* OPT FUSED DTYPE=bf16
# EXPERT: full-resolution feature maps of the first and last levels; smaller batch or crops, AMP, checkpoint the outer levels
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs


class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diff_y = x2.size(2) - x1.size(2)
        diff_x = x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels=3, n_classes=2, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.contracting = nn.ModuleList()
        prev = n_channels
        for i, w in enumerate(widths):
            pool = nn.Identity() if i == 0 else nn.MaxPool2d(2)
            self.contracting.append(nn.Sequential(pool, DoubleConv(prev, w)))
            prev = w
        self.expanding = nn.ModuleDict()
        for w in reversed(widths[:-1]):
            self.expanding[f"up{w}"] = Up(w * 2, w)
        self.outc = nn.Conv2d(widths[0], n_classes, kernel_size=1)

    def forward(self, x):
        skips = []
        for stage in self.contracting:
            x = stage(x)
            skips.append(x)
        skips.pop()
        for up in self.expanding.values():
            x = up(x, skips.pop())
        return self.outc(x)


def dice_loss(pred, target, smooth=1e-6):
    inter = 2 * (pred * target).sum(dim=(-1, -2))
    sets_sum = pred.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    dice = (inter + smooth) / (sets_sum + smooth)
    return 1 - dice.mean()


def train_net(net, device, epochs=1, batch_size=8, lr=1e-5, img_size=(480, 640)):
    optimizer = torch.optim.RMSprop(net.parameters(), lr=lr, weight_decay=1e-8, momentum=0.9)
    if os.environ.get("OPT") or os.environ.get("FUSED"):
        optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        net.train()
        epoch_loss = 0
        for step in range(3):
            images = torch.rand(batch_size, 3, *img_size).to(device=device, dtype=knobs.dtype())
            true_masks = torch.randint(0, 2, (batch_size, *img_size)).to(device=device)
            with knobs.autocast():
                masks_pred = net(images)
                loss = criterion(masks_pred, true_masks)
                loss = loss + dice_loss(F.softmax(masks_pred, dim=1).float(),
                                        F.one_hot(true_masks, 2).permute(0, 3, 1, 2).float())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.1)
            optimizer.step()
            epoch_loss += loss.item()
            print(f"epoch {epoch} step {step} loss (batch) {loss.item():.4f}")


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = UNet().to(device)
    knobs.apply(net)
    train_net(net, device, batch_size=int(os.environ.get("BATCH", 8)))
    print("PEAK", torch.cuda.max_memory_allocated())
