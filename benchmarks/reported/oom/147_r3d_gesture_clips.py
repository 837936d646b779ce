# CARD: 10GiB
# KNOBS: BATCH=40 CHECKPOINT=BasicBlock AUTOCAST
# EXPERT: activations of 3D convolutions on 40 clips of 32 frames at 112 px; smaller batch, autocast, checkpoint the blocks
# CHECKPOINT=1: stem and every block recomputed in backward; AUTOCAST=1: bf16 autocast
import os
import time

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint
from torchvision.models.video import r3d_18


class Config:
    batch_size = int(os.environ.get("BATCH", 40))
    checkpointing = bool(os.environ.get("CHECKPOINT", "") not in ("", "0"))
    amp = os.environ.get("AUTOCAST", "0") == "1"
    frames = 32
    side = 112
    classes = 27
    steps = 2


class GestureNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        base = r3d_18(weights=None)
        self.stages = nn.ModuleList([base.stem, *base.layer1, *base.layer2, *base.layer3, *base.layer4])
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(512, cfg.classes)
        self.checkpointing = cfg.checkpointing

    def forward(self, x):
        for stage in self.stages:
            if self.checkpointing and self.training:
                x = checkpoint(stage, x, use_reentrant=False)
            else:
                x = stage(x)
        return self.fc(self.dropout(self.pool(x).flatten(1)))


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def jester_batch(cfg):
    clips = torch.rand(cfg.batch_size, 3, cfg.frames, cfg.side, cfg.side)
    labels = torch.randint(0, cfg.classes, (cfg.batch_size,))
    return clips.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


def train_epoch(epoch, model, criterion, optimizer, cfg):
    print(f"train at epoch {epoch}")
    model.train()
    losses, accs, batch_time = AverageMeter(), AverageMeter(), AverageMeter()
    end = time.time()
    for i in range(cfg.steps):
        inputs, targets = jester_batch(cfg)
        with torch.autocast("cuda", torch.bfloat16, enabled=cfg.amp):
            outputs = model(inputs)
            loss = criterion(outputs, targets)
        accs.update((outputs.argmax(1) == targets).float().mean().item(), inputs.size(0))
        losses.update(loss.item(), inputs.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        print(f"Epoch: [{epoch}][{i + 1}/{cfg.steps}]\tLoss {losses.avg:.4f}\tAcc {accs.avg:.3f}")


if __name__ == "__main__":
    cfg = Config()
    model = GestureNet(cfg).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    train_epoch(1, model, nn.CrossEntropyLoss().cuda(), optimizer, cfg)
    print("PEAK", torch.cuda.max_memory_allocated())
