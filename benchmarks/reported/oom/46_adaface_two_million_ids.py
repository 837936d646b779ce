# CARD: 12GiB
# KNOBS: BATCH=32 CLASSES=2059906 SAMPLE_RATE=1.0 MOMENTUM=0.9 AUTOCAST CHECKPOINT=IBasicBlock OPT FUSED
# EXPERT: the 512 x 2059906 class matrix is 3.9 GiB and exists as weight, normalized copy, two gradients and momentum, besides several batch x 2 M logits; far fewer identities (600 thousand) or partial FC with a twentieth of the classes, or with a tenth and without momentum or with batch 8; also the head over several cards; batch 8, SGD without momentum, Adafactor, autocast or checkpointing the backbone alone is not enough
# Source: mk-minchul/AdaFace 123 (WebFace42M, custom_num_class=2059906 on a 12 GB card, tried to allocate 3.93 GiB), deepinsight/insightface 1989 (3 x weights + 2 x logits), 1426; written by hand
import os

import torch
import torch.nn.functional as F
from torch import nn

import knobs

BATCH = int(os.environ.get("BATCH", 32))
CLASSES = int(os.environ.get("CLASSES", 2059906))
SAMPLE_RATE = float(os.environ.get("SAMPLE_RATE", 1.0))
MOMENTUM = float(os.environ.get("MOMENTUM", 0.9))
EMB = 512


def l2_norm(x, axis=1):
    norm = torch.norm(x, 2, axis, True)
    return torch.div(x, norm)


class IBasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(i)
        self.conv1 = nn.Conv2d(i, o, 3, 1, 1, bias=False)
        self.bn2, self.prelu = nn.BatchNorm2d(o), nn.PReLU(o)
        self.conv2 = nn.Conv2d(o, o, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(o)
        self.short = nn.Sequential() if stride == 1 and i == o else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + self.short(x)


class IResNet(nn.Module):
    def __init__(self, units=(2, 2, 2, 2)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64))
        body, c = [], 64
        for width, n in zip((64, 128, 256, 512), units):
            for j in range(n):
                body.append(IBasicBlock(c, width, 2 if j == 0 else 1))
                c = width
        self.body = nn.Sequential(*body)
        self.output = nn.Sequential(nn.BatchNorm2d(512), nn.Dropout(0.4), nn.Flatten(), nn.Linear(512 * 49, EMB), nn.BatchNorm1d(EMB, affine=False))

    def forward(self, x):
        x = self.output(self.body(self.stem(x))).float()
        norm = torch.norm(x, 2, 1, True)
        return x / norm, norm


class AdaFaceHead(nn.Module):
    """kernel: (EMB, classes). With SAMPLE_RATE < 1 only the classes of the batch and a sample take part (partial FC)."""

    def __init__(self, m=0.4, h=0.333, s=64.0, t_alpha=0.01):
        super().__init__()
        self.m, self.h, self.s, self.t_alpha = m, h, s, t_alpha
        kernel = torch.empty(CLASSES, EMB, device="cuda").normal_(0, 0.01)
        self.sampled = SAMPLE_RATE < 1
        if self.sampled:
            self.register_buffer("weight", kernel)
            self.register_buffer("weight_mom", torch.zeros_like(kernel) if MOMENTUM else None)
            self.kernel = nn.Parameter(kernel[:1].clone())
        else:
            self.kernel = nn.Parameter(kernel)
        self.register_buffer("batch_mean", torch.ones(1, device="cuda") * 20)
        self.register_buffer("batch_std", torch.ones(1, device="cuda") * 100)

    @torch.no_grad()
    def sample(self, label, optimizer):
        perm = torch.rand(CLASSES, device=label.device)
        perm[label] = 2.0
        self.index = torch.topk(perm, int(CLASSES * SAMPLE_RATE))[1].sort()[0]
        label = torch.searchsorted(self.index, label)
        optimizer.state.pop(self.kernel, None)
        self.kernel = nn.Parameter(self.weight[self.index])
        if MOMENTUM:
            optimizer.state[self.kernel]["momentum_buffer"] = self.weight_mom[self.index]
        optimizer.param_groups[-1]["params"] = [self.kernel]
        return label

    @torch.no_grad()
    def write_back(self, optimizer):
        self.weight[self.index] = self.kernel.data
        if MOMENTUM:
            self.weight_mom[self.index] = optimizer.state[self.kernel]["momentum_buffer"]

    def forward(self, embeddings, norms, label):
        kernel_norm = l2_norm(self.kernel, 1)
        with knobs.autocast():
            cosine = F.linear(embeddings, kernel_norm)
        cosine = cosine.float().clamp(-1 + 1e-3, 1 - 1e-3)
        safe = norms.clip(0.001, 100).detach()
        with torch.no_grad():
            self.batch_mean.lerp_(safe.mean().view(1), self.t_alpha)
            self.batch_std.lerp_(safe.std().view(1), self.t_alpha)
        scaler = ((safe - self.batch_mean) / (self.batch_std + 1e-3) * self.h).clip(-1, 1)
        rows = torch.arange(label.shape[0], device=label.device)
        target = cosine[rows, label]
        theta = (target.acos() - self.m * scaler.squeeze(1)).clip(1e-3, 3.14159 - 1e-3)
        target = theta.cos() - (self.m + self.m * scaler.squeeze(1))
        cosine = cosine.index_put((rows, label), target)
        return cosine * self.s


backbone = knobs.apply(IResNet().cuda())
head = AdaFaceHead()
opt_backbone = torch.optim.SGD(backbone.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
opt_head = torch.optim.SGD(head.parameters(), lr=0.1, momentum=MOMENTUM, weight_decay=5e-4)
sched = [torch.optim.lr_scheduler.MultiStepLR(o, [12, 20, 24], 0.1) for o in (opt_backbone, opt_head)]

for step in range(3):
    images = torch.rand(BATCH, 3, 112, 112).cuda()
    labels = torch.randint(0, CLASSES, (BATCH,)).cuda()
    if head.sampled:
        labels = head.sample(labels, opt_head)
    with knobs.autocast():
        emb, norms = backbone(images)
    logits = head(emb, norms, labels)
    loss = F.cross_entropy(logits, labels)
    opt_backbone.zero_grad()
    opt_head.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(backbone.parameters(), 5.0)
    opt_backbone.step()
    opt_head.step()
    if head.sampled:
        head.write_back(opt_head)
    print("step", step, "loss", loss.item(), "norm", norms.mean().item())
    del logits, loss
for s in sched:
    s.step()
