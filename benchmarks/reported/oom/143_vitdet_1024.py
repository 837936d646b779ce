# CARD: 24GiB
# KNOBS: BATCH=2 CHECKPOINT=Block AUTOCAST FUSED DTYPE=bf16
# EXPERT: 4096 x 4096 attention maps of 12 heads, several per block; fused attention first, then checkpointing
# FUSED=1: F.scaled_dot_product_attention instead of the explicit softmax; CHECKPOINT=1: every block recomputed
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def flag(name):
    return os.environ.get(name, "0") not in ("", "0")


class Attention(nn.Module):
    def __init__(self, dim, heads, grid):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if flag("FUSED"):
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q * self.scale) @ k.transpose(-2, -1)
            attn = attn.softmax(dim=-1)
            x = attn @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads, grid):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, grid)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViTDet(nn.Module):
    def __init__(self, img_size=1024, patch=16, dim=768, depth=12, heads=12, classes=80):
        super().__init__()
        self.grid = img_size // patch
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, self.grid) for _ in range(depth))
        self.up = nn.ConvTranspose2d(dim, 256, 2, 2)
        self.heat = nn.Conv2d(256, classes, 3, padding=1)
        self.size = nn.Conv2d(256, 2, 3, padding=1)

    def forward(self, images):
        x = self.patch_embed(images)
        B, C, H, W = x.shape
        x = x.flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if flag("CHECKPOINT") else block(x)
        x = F.relu(self.up(x.transpose(1, 2).reshape(B, C, H, W)))
        return self.heat(x), self.size(x)


def main(iters=2):
    batch_size = int(os.environ.get("BATCH", 2))
    dtype = torch.bfloat16 if os.environ.get("DTYPE") == "bf16" else torch.float32
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = ViTDet()
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    for it in range(iters):
        images = torch.randn(batch_size, 3, 1024, 1024, device="cuda", dtype=dtype)
        target = torch.rand(batch_size, 80, 128, 128, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=flag("AUTOCAST")):
            heat, size = model(images)
        loss = F.binary_cross_entropy_with_logits(heat.float(), target) + 0.1 * size.float().abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iter {it} loss {loss.item():.4f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
