# CARD: 10GiB
# KNOBS: BATCH=4 NO_GRAD CPU_OUTPUTS
# EXPERT: full-resolution logits of 150 classes of all validation images stay on the GPU, with their graphs; move them to the CPU (and no_grad)
# CPU_OUTPUTS=1: collected logits are detached and moved to the CPU; NO_GRAD=1: evaluation under torch.no_grad()
import contextlib
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

BATCH = int(os.environ.get("BATCH", 4))
NO_GRAD = os.environ.get("NO_GRAD", "0") == "1"
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS", "0") == "1"
CLASSES = 150


class ADE20KVal(Dataset):
    def __init__(self, n=80, size=512):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        image = torch.full((3, self.size, self.size), i / self.n)
        label = torch.full((self.size, self.size), i % CLASSES, dtype=torch.long)
        return image, label


def cbr(i, o, stride=1, dilation=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, dilation, dilation, bias=False),
                         nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class PPM(nn.Module):
    def __init__(self, ch, out, bins=(1, 2, 3, 6)):
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(b), nn.Conv2d(ch, out, 1), nn.ReLU())
                                    for b in bins)
        self.last = cbr(ch + out * len(bins), out)

    def forward(self, x):
        pooled = [F.interpolate(s(x), x.shape[2:], mode="bilinear", align_corners=False) for s in self.stages]
        return self.last(torch.cat([x] + pooled, 1))


class UPerLite(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(cbr(3, 32, 2), cbr(32, 64, 2), cbr(64, 128, 2))
        self.body = nn.Sequential(cbr(128, 256, dilation=2), cbr(256, 256, dilation=4))
        self.ppm = PPM(256, 128)
        self.cls = nn.Conv2d(128, CLASSES, 1)

    def forward(self, x):
        y = self.cls(self.ppm(self.body(self.stem(x))))
        return F.interpolate(y, x.shape[2:], mode="bilinear", align_corners=False)


def evaluate(model, loader, device):
    model.eval()
    logits, labels = [], []
    with torch.no_grad() if NO_GRAD else contextlib.nullcontext():
        for image, label in loader:
            out = model(image.to(device))
            logits.append(out.detach().cpu() if CPU_OUTPUTS else out)
            labels.append(label)
    correct = total = 0
    for out, label in zip(logits, labels):
        correct += (out.argmax(1).cpu() == label).sum().item()
        total += label.numel()
    return correct / total


if __name__ == "__main__":
    device = torch.device("cuda")
    net = UPerLite().to(device)
    loader = DataLoader(ADE20KVal(), batch_size=BATCH)
    print("pixel accuracy", evaluate(net, loader, device))
    print("PEAK", torch.cuda.max_memory_allocated())
