# CARD: 32GiB
# KNOBS: BATCH=192 LOCAL_CROPS=8 OUT_DIM=65536 AUTOCAST CHECKPOINT=Block CHECKPOINT_PATHS=backbone.blocks.* OPT FUSED
# EXPERT: the student's graph of 2 global and 8 local crops per image is alive at once, and the 65536-dim head outputs are softmaxed for each pair of crops; fewer images, fewer local crops with backward per crop, AMP, checkpoint the blocks; a smaller head alone is not enough
# Source: multi-crop DINO needs far more memory than supervised ViT-S because all crops' graphs are kept (facebookresearch/dino 269, 232)
import copy
import math
import os

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

hp = {
    "arch": "vit_small_patch16_224",
    "out_dim": int(os.environ.get("OUT_DIM", 65536)),
    "local_crops_number": int(os.environ.get("LOCAL_CROPS", 8)),
    "batch_size_per_gpu": int(os.environ.get("BATCH", 192)),
    "momentum_teacher": 0.996,
    "niter": 3,
}


class DINOHead(nn.Module):
    def __init__(self, in_dim, out_dim, hidden=2048, bottleneck=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(in_dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
                                 nn.Linear(hidden, bottleneck))
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(bottleneck, out_dim, bias=False))

    def forward(self, x):
        return self.last_layer(F.normalize(self.mlp(x), dim=-1))


class MultiCropWrapper(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, crops):
        if not isinstance(crops, list):
            crops = [crops]
        sizes = torch.tensor([c.shape[-1] for c in crops])
        groups = torch.unique_consecutive(sizes, return_counts=True)[1].tolist()
        outs, start = [], 0
        for n in groups:
            outs.append(self.backbone(torch.cat(crops[start:start + n])))
            start += n
        return self.head(torch.cat(outs))


class DINOLoss(nn.Module):
    def __init__(self, out_dim, ncrops, student_temp=0.1, teacher_temp=0.04, m=0.9):
        super().__init__()
        self.ncrops, self.ts, self.tt, self.m = ncrops, student_temp, teacher_temp, m
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_output, teacher_output):
        student = (student_output / self.ts).chunk(self.ncrops)
        teacher = F.softmax((teacher_output - self.center) / self.tt, dim=-1).detach().chunk(2)
        total, terms = 0, 0
        for iq, q in enumerate(teacher):
            for v in range(len(student)):
                if v == iq:
                    continue
                total = total + torch.sum(-q * F.log_softmax(student[v], dim=-1), dim=-1).mean()
                terms += 1
        with torch.no_grad():
            self.center = self.center * self.m + teacher_output.mean(0, keepdim=True) * (1 - self.m)
        return total / terms


def build():
    vit = timm.create_model(hp["arch"], num_classes=0, dynamic_img_size=True)
    return MultiCropWrapper(vit, DINOHead(vit.num_features, hp["out_dim"])).cuda()


student = build()
teacher = build()
teacher.load_state_dict(student.state_dict())
for p in teacher.parameters():
    p.requires_grad = False
knobs.apply(student)
print("Student and Teacher are built: they are both", hp["arch"])

dino_loss = DINOLoss(hp["out_dim"], hp["local_crops_number"] + 2).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)


def multicrop(n):
    return [torch.zeros(n, 3, 224, 224) for _ in range(2)] + \
        [torch.zeros(n, 3, 96, 96) for _ in range(hp["local_crops_number"])]


for it in range(hp["niter"]):
    for g in optimizer.param_groups:
        g["lr"] = 5e-4 * 0.5 * (1 + math.cos(math.pi * it / hp["niter"]))
    images = [im.cuda(non_blocking=True) for im in multicrop(hp["batch_size_per_gpu"])]
    with knobs.autocast():
        teacher_output = teacher(images[:2])
        student_output = student(images)
        loss = dino_loss(student_output, teacher_output)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 3.0)
    optimizer.step()
    with torch.no_grad():
        for ps, pt in zip(student.parameters(), teacher.parameters()):
            pt.mul_(hp["momentum_teacher"]).add_(ps, alpha=1 - hp["momentum_teacher"])
    print(f"Epoch: [0/1] [{it}/{hp['niter']}] loss: {loss.item():.4f}")

print("PEAK", torch.cuda.max_memory_allocated())
