# CARD: 24GiB
# KNOBS: BATCH=4 FRAMES=16 SDPA AUTOCAST CHECKPOINT=Block,Attention CHECKPOINT_PATHS=blocks.* OPT FUSED
# EXPERT: joint space-time attention over 16*196 tokens makes (heads, 3137, 3137) score matrices in each layer; fused SDPA or divided attention, fewer frames, checkpoint the blocks; autocast alone (softmax stays fp32) or the optimizer is not enough
# Source: T=8 clips fit a 16 GB T4 and T=16 does not, even at a tiny batch (facebookresearch/TimeSformer 38)
import argparse
import os

import torch
from torch import nn

import knobs

parser = argparse.ArgumentParser("video transformer finetuning")
parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", 4)))
parser.add_argument("--num-frames", type=int, default=int(os.environ.get("FRAMES", 16)))
parser.add_argument("--crop", type=int, default=224)
parser.add_argument("--depth", type=int, default=12)
parser.add_argument("--dim", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--num-classes", type=int, default=400)
parser.add_argument("--fused-attn", action="store_true", default=os.environ.get("SDPA", "0") == "1")
parser.add_argument("--steps", type=int, default=3)
opt = parser.parse_args()


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.drop = nn.Dropout(0.0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if opt.fused_attn:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            attn = attn.softmax(dim=-1)
            y = self.drop(attn) @ v
        return self.proj(y.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VideoTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        n = (opt.crop // 16) ** 2
        self.patch_embed = nn.Conv2d(3, opt.dim, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, opt.dim))
        self.pos = nn.Parameter(torch.zeros(1, 1, n, opt.dim))
        self.time = nn.Parameter(torch.zeros(1, opt.num_frames, 1, opt.dim))
        self.blocks = nn.ModuleList([Block(opt.dim, opt.heads) for _ in range(opt.depth)])
        self.norm = nn.LayerNorm(opt.dim)
        self.head = nn.Linear(opt.dim, opt.num_classes)

    def forward(self, clip):  # B C T H W
        B, C, T, H, W = clip.shape
        x = self.patch_embed(clip.transpose(1, 2).reshape(B * T, C, H, W))
        x = x.flatten(2).transpose(1, 2).reshape(B, T, -1, opt.dim)
        x = (x + self.pos + self.time).flatten(1, 2)
        x = torch.cat((self.cls.expand(B, -1, -1), x), dim=1)
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x)[:, 0])


def clips():
    while True:
        yield (torch.zeros(opt.batch_size, 3, opt.num_frames, opt.crop, opt.crop),
               torch.randint(opt.num_classes, (opt.batch_size,)))


with torch.device("cuda"):
    model = VideoTransformer()
knobs.apply(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)
loss_fun = nn.CrossEntropyLoss()

for cur_iter, (inputs, labels) in zip(range(opt.steps), clips()):
    inputs, labels = inputs.cuda(non_blocking=True), labels.cuda()
    with knobs.autocast():
        preds = model(inputs)
        loss = loss_fun(preds, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    top1 = (preds.argmax(1) == labels).float().mean().item()
    print(f"iter {cur_iter} loss {loss.item():.3f} top1 {top1:.2f}")

print("PEAK", torch.cuda.max_memory_allocated())
