# CARD: 16GiB
# KNOBS: BATCH=32 VAL_BATCH=64 AUTOCAST NO_GRAD CHECKPOINT=Block CHECKPOINT_PATHS=blocks.* OPT FUSED
# EXPERT: validation without torch.no_grad(), and val_loss sums losses with their graphs; no_grad and .item()
import os

import timm
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

import knobs

DEVICE = torch.device("cuda:0")


class CFG:
    model_name = "vit_base_patch16_224"
    n_classes = 6
    size = 224
    train_bs = int(os.environ.get("BATCH", 32))
    valid_bs = int(os.environ.get("VAL_BATCH", 64))
    lr = 1e-5
    epochs = 1
    steps = 3


class LeafDataset(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        return torch.rand(3, CFG.size, CFG.size), torch.randint(0, CFG.n_classes, ())


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    for step, (images, labels) in enumerate(loader):
        images = images.to(DEVICE)
        labels = labels.to(DEVICE)
        optimizer.zero_grad()
        with knobs.autocast():
            preds = model(images)
            loss = criterion(preds, labels)
        loss.backward()
        optimizer.step()
        print(f"  train step {step} loss {loss.item():.4f}")
        if step + 1 == CFG.steps:
            break


@knobs.no_grad
def valid_one_epoch(model, loader, criterion):
    model.eval()
    val_loss = 0
    correct = 0
    total = 0
    for images, labels in loader:
        images = images.to(DEVICE)
        labels = labels.to(DEVICE)
        with knobs.autocast():
            preds = model(images)
            loss = criterion(preds, labels)
        val_loss += loss
        correct += (preds.argmax(1) == labels).sum().item()
        total += labels.size(0)
    return val_loss / len(loader), correct / total


def run():
    model = timm.create_model(CFG.model_name, pretrained=False, num_classes=CFG.n_classes)
    model = model.to(DEVICE)
    knobs.apply(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=CFG.lr, weight_decay=1e-6)

    train_loader = DataLoader(LeafDataset(256), batch_size=CFG.train_bs, shuffle=True, drop_last=True)
    valid_loader = DataLoader(LeafDataset(192), batch_size=CFG.valid_bs, shuffle=False)

    best = 0.0
    for epoch in range(CFG.epochs):
        print("epoch", epoch)
        train_one_epoch(model, train_loader, criterion, optimizer)
        torch.cuda.empty_cache()
        val_loss, val_acc = valid_one_epoch(model, valid_loader, criterion)
        print(f"  val loss {val_loss.item():.4f} acc {val_acc:.4f}")
        best = max(best, val_acc)


run()
print("PEAK", torch.cuda.max_memory_allocated())
