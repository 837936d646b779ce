# CARD: 16GiB
# KNOBS: BATCH=8,12,16 CHECKPOINT=CNBlock AUTOCAST=1 FUSED=1
# EXPERT: ConvNeXt-Base at 512 pixels keeps close to 1 GB for an image in fp32; halve the batch and accumulate, bf16 autocast nearly halves it, or checkpoint the CNBlocks
# in the manner of a Kaggle thread on diabetic retinopathy grading "T4 16GB, convnext_base, img_size 512"
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torchvision.models import convnext_base


class CFG:
    size = 512
    batch = int(os.environ.get("BATCH", "24"))
    ckpt = os.environ.get("CHECKPOINT")
    amp = os.environ.get("AUTOCAST", "0") == "1"
    fused = os.environ.get("FUSED", "0") == "1"
    lr = 1e-4


class Fundus(Dataset):
    def __len__(self):
        return CFG.batch * 3

    def __getitem__(self, i):
        return torch.zeros(3, CFG.size, CFG.size), float(i % 5)


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))

    def forward(self, x):
        return x.clamp(min=1e-6).pow(self.p).mean((2, 3)).pow(1 / self.p)


class Grader(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = convnext_base(weights=None).features
        self.pool, self.head = GeM(), nn.Linear(1024, 1)

    def forward(self, x):
        return self.head(self.pool(self.backbone(x))).squeeze(1)


def patch_checkpoint(module, cls):
    for m in module.modules():
        if m.__class__.__name__ == cls:
            original = m.forward
            m.forward = lambda x, original=original: checkpoint(original, x, use_reentrant=False)


def train_fn(loader, model, optimizer, criterion):
    model.train()
    for images, grades in loader:
        images, grades = images.to("cuda"), grades.float().to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=CFG.amp):
            loss = criterion(model(images), grades)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


model = Grader().to("cuda")
if CFG.ckpt:
    patch_checkpoint(model, CFG.ckpt)
optimizer = torch.optim.AdamW(model.parameters(), lr=CFG.lr, fused=True if CFG.fused else None)
train_fn(DataLoader(Fundus(), batch_size=CFG.batch), model, optimizer, nn.SmoothL1Loss())
print("PEAK", torch.cuda.max_memory_allocated())
