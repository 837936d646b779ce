# kind: a cache of rotary embeddings by length warms up; after lucidrains/rotary-embedding-torch issue 15
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        self.register_buffer("freqs", 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim))
        self.cache = {}

    def forward(self, seq_len):
        key = f"freqs:{seq_len}"
        if key in self.cache:
            return self.cache[key]
        t = torch.arange(seq_len, device=self.freqs.device).float()
        freqs = torch.einsum("i,j->ij", t, self.freqs)
        freqs = torch.cat((freqs, freqs), dim=-1)
        self.cache[key] = (freqs.cos(), freqs.sin())
        return self.cache[key]

    def rotate(self, x):
        cos, sin = self(x.shape[-2])
        return x * cos + rotate_half(x) * sin


class Attention(nn.Module):
    def __init__(self, dim, heads, rotary):
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv, self.out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        o = F.scaled_dot_product_attention(self.rotary.rotate(q), self.rotary.rotate(k), v)
        return self.out(o.transpose(1, 2).reshape(b, n, d))


class EncDec(nn.Module):
    def __init__(self, vocab=200, dim=128, heads=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = Attention(dim, heads, RotaryEmbedding(dim // heads))
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, dim))
        self.to_logits = nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.emb(x)
        h = h + self.attn(h)
        return self.to_logits(h + self.ff(h))


def main():
    random.seed(0)
    torch.manual_seed(0)
    model = EncDec().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    buckets = list(range(32, 513, 32))
    for epoch in range(5):
        random.shuffle(buckets)
        model.train()
        for n in buckets:
            x = torch.randint(0, 200, (2, n + 1)).cuda()
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            for n in (48, 96, 160):
                model(torch.randint(0, 200, (2, n)).cuda())
        print(epoch, loss.item(), len(model.attn.rotary.cache))


if __name__ == "__main__":
    main()
