# kind: karpathy/nanoGPT forks "memory grows during training": sequence length curriculum, and a cache of rotary tables by length
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

_rope_cache = {}


def rope(length, dim, device):
    key = (length, dim)
    if key not in _rope_cache:
        inv = 1.0 / (10000 ** (torch.arange(0, dim, 2, device=device) / dim))
        ang = torch.outer(torch.arange(length, device=device).float(), inv)
        _rope_cache[key] = (ang.cos(), ang.sin())
    return _rope_cache[key]


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        cos, sin = rope(t, d // self.h, x.device)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab=1000, d=128, layers=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def forward(self, idx):
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


model = GPT().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(160):
    length = 64 + 16 * math.floor(step / 2)        # longer and longer, up to the end
    length = min(length, 1024)
    x = torch.randint(0, 1000, (4, length), device="cuda")
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
print(len(_rope_cache), "tables", torch.cuda.memory_allocated() >> 20, "MiB")
