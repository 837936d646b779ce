# kind: cache of attention masks is keyed by a config object without __eq__/__hash__, which is made anew in every call, so the cache never hits and never ends; own, in the manner of lru_cache-on-config reports in transformers/detr forks
import functools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowSpec:
    """Shape of a shifted local attention window."""

    def __init__(self, length, window, shift, device):
        self.length = length
        self.window = window
        self.shift = shift
        self.device = device

    def __repr__(self):
        return f"WindowSpec({self.length}, {self.window}, {self.shift})"


@functools.lru_cache(maxsize=None)  # ALSO
def window_mask(spec):
    pos = torch.arange(spec.length, device=spec.device)
    block = (pos + spec.shift) // spec.window
    same = block[:, None] == block[None, :]
    bias = torch.zeros(spec.length, spec.length, device=spec.device)
    return bias.masked_fill(~same, -math.inf)  # ALSO


class LocalAttention(nn.Module):
    def __init__(self, dim, heads, window, shifted):
        super().__init__()
        self.heads = heads
        self.window = window
        self.shift = window // 2 if shifted else 0
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mask = window_mask(WindowSpec(n, self.window, self.shift, x.device))  # LEAK
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, window, shifted):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = LocalAttention(dim, heads, window, shifted)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class CharModel(nn.Module):
    def __init__(self, vocab=96, dim=64, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, 4, 32, i % 2 == 1) for i in range(depth))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def main():
    device = torch.device("cuda")
    torch.manual_seed(0)
    net = CharModel().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for it in range(150):
        ids = torch.randint(0, 96, (4, 193), device=device)
        logits = net(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 50 == 0:
            print(it, round(loss.item(), 4))


main()
