# CARD: 3584MiB
# KNOBS: BATCH=4 AUTOCAST CPU_OUTPUTS CHECKPOINT=BasicBlock OPT FUSED
# EXPERT: validate() keeps the logits of the whole validation set on the GPU; .cpu() them or compute the metric per batch
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet34

import knobs

N_CLASSES = 21
BATCH = int(os.environ.get("BATCH", 4))
DEVICE = "cuda"
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS") == "1"


class VOCLike(Dataset):
    def __init__(self, n, size=320):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        img = torch.rand(3, self.size, self.size)
        mask = torch.randint(0, N_CLASSES, (self.size, self.size))
        return img, mask


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        r = resnet34()
        self.encoder = nn.Sequential(r.conv1, r.bn1, r.relu, r.maxpool, r.layer1, r.layer2, r.layer3, r.layer4)
        self.classifier = nn.Sequential(
            nn.Conv2d(512, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
            nn.Dropout(0.1), nn.Conv2d(256, 96, 1))
        self.refine = nn.Sequential(
            nn.Conv2d(96, 96, 3, padding=1, bias=False), nn.BatchNorm2d(96), nn.ReLU(),
            nn.Conv2d(96, N_CLASSES, 1))

    def forward(self, x):
        y = self.classifier(self.encoder(x))
        y = F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.refine(y)


def train_epoch(model, loader, optimizer, loss_fn):
    model.train()
    running = 0.0
    for step, (img, mask) in enumerate(loader):
        img, mask = img.to(DEVICE), mask.to(DEVICE)
        with knobs.autocast():
            loss = loss_fn(model(img), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if step == 2:
            break
    return running / (step + 1)


@torch.no_grad()
def validate(model, loader, loss_fn):
    model.eval()
    all_preds, all_targets = [], []
    val_loss = 0.0
    for img, mask in loader:
        img, mask = img.to(DEVICE), mask.to(DEVICE)
        with knobs.autocast():
            out = model(img)
            val_loss += loss_fn(out, mask).item() * len(img)
        # CPU_OUTPUTS: only the class numbers are kept, in host memory
        all_preds.append(out.argmax(1).byte().cpu() if CPU_OUTPUTS else out)
        all_targets.append(mask.byte().cpu() if CPU_OUTPUTS else mask)
    # metrics over the whole validation set
    inter = torch.zeros(N_CLASSES)
    union = torch.zeros(N_CLASSES)
    for pred, target in zip(all_preds, all_targets):
        if not CPU_OUTPUTS:
            pred = pred.argmax(1)
        for c in range(N_CLASSES):
            inter[c] += ((pred == c) & (target == c)).sum().item()
            union[c] += ((pred == c) | (target == c)).sum().item()
    miou = (inter / union.clamp(min=1)).mean().item()
    return val_loss / len(loader.dataset), miou


torch.manual_seed(0)
model = FCN().to(DEVICE)
knobs.apply(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
train_loader = DataLoader(VOCLike(64), batch_size=BATCH, shuffle=True)
val_loader = DataLoader(VOCLike(384), batch_size=2 * BATCH)

for epoch in range(1):
    train_loss = train_epoch(model, train_loader, optimizer, loss_fn)
    val_loss, miou = validate(model, val_loader, loss_fn)
    print(f"epoch {epoch}: train {train_loss:.4f} val {val_loss:.4f} mIoU {miou:.3f}")

print("PEAK", torch.cuda.max_memory_allocated())
