# CARD: 10GiB
# KNOBS: BATCH=<images>, NO_GRAD=1 (teacher), SDPA=1, CHECKPOINT=1, AUTOCAST=1, FUSED=1
# EXPERT: the EMA teacher builds an autograd graph: put it under torch.no_grad() / requires_grad_(False); then fused attention, then batch
# from: https://github.com/facebookresearch/dino/issues/104
import atexit, copy, os
import contextlib
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))
ON = {k: os.environ.get(k, "0") != "0" for k in ("NO_GRAD", "SDPA", "CHECKPOINT", "AUTOCAST", "FUSED")}
BATCH = int(os.environ.get("BATCH", 8))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if ON["SDPA"]:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=384, depth=12, heads=6, patch=8, img=224):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, dim, img // patch, img // patch) * 0.02)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.patch_embed(x)
        x = x + F.interpolate(self.pos_embed, size=x.shape[-2:], mode="bicubic")
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=False) if ON["CHECKPOINT"] and self.training else blk(x)
        return self.norm(x)[:, 0]


class DINOHead(nn.Module):
    def __init__(self, dim, out_dim=65536, hidden=2048, bottleneck=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
                                 nn.Linear(hidden, bottleneck))
        self.last_layer = nn.Linear(bottleneck, out_dim, bias=False)

    def forward(self, x):
        return self.last_layer(F.normalize(self.mlp(x), dim=-1))


class MultiCropWrapper(nn.Module):
    """runs each resolution once"""
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, crops):
        groups = {}
        for c in crops:
            groups.setdefault(c.shape[-1], []).append(c)
        return self.head(torch.cat([self.backbone(torch.cat(g)) for g in groups.values()]))


class DINOLoss(nn.Module):
    def __init__(self, out_dim=65536, ncrops=10):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, out_dim))
        self.ncrops = ncrops

    def forward(self, student_output, teacher_output):
        student_out = (student_output / 0.1).chunk(self.ncrops)
        teacher_out = F.softmax((teacher_output - self.center) / 0.04, dim=-1).detach().chunk(2)
        total, n = 0, 0
        for iq, q in enumerate(teacher_out):
            for v in range(len(student_out)):
                if v == iq:
                    continue
                total = total + torch.sum(-q * F.log_softmax(student_out[v], dim=-1), dim=-1).mean()
                n += 1
        with torch.no_grad():
            self.center.mul_(0.9).add_(teacher_output.detach().mean(0, keepdim=True), alpha=0.1)
        return total / n


def train_one_epoch(student, teacher, dino_loss, optimizer):
    for it in range(3):
        images = [torch.randn(BATCH, 3, 224, 224).cuda() for _ in range(2)]
        images += [torch.randn(BATCH, 3, 96, 96).cuda() for _ in range(8)]
        with torch.autocast("cuda", torch.bfloat16, enabled=ON["AUTOCAST"]):
            with torch.no_grad() if ON["NO_GRAD"] else contextlib.nullcontext():
                teacher_output = teacher(images[:2])  # only the 2 global views pass through the teacher
            student_output = student(images)
            loss = dino_loss(student_output.float(), teacher_output.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ps, pt in zip(student.parameters(), teacher.parameters()):
                pt.data.mul_(0.996).add_(0.004 * ps.detach().data)
        print(it, loss.item())


student = MultiCropWrapper(ViT(), DINOHead(384)).cuda()
teacher = copy.deepcopy(student).eval()
opt = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.04, fused=ON["FUSED"])
train_one_epoch(student, teacher, DINOLoss().cuda(), opt)
