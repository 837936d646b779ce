# kind: masks and position tables kept per padded length, a bounded number of lengths; from issues on caches keyed by shape
import random
import torch
import torch.nn as nn


class RelativeBias(nn.Module):
    """ALiBi-like bias and causal mask, made once per length."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self._cache = {}

    def forward(self, length, device):
        key = (length, device)
        if key not in self._cache:
            pos = torch.arange(length, device=device)
            dist = (pos[None] - pos[:, None]).float()
            slopes = torch.tensor([2.0 ** (-(h + 1)) for h in range(self.heads)], device=device)
            bias = slopes[:, None, None] * dist
            self._cache[key] = bias.masked_fill(dist > 0, float("-inf"))
        return self._cache[key]


class Block(nn.Module):
    def __init__(self, dim, heads, bias):
        super().__init__()
        self.heads, self.bias = heads, bias
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5 + self.bias(t, x.device)
        y = torch.softmax(att, dim=-1) @ v
        return x + self.proj(y.transpose(1, 2).reshape(b, t, d))


class LM(nn.Module):
    def __init__(self, vocab=100, dim=64, heads=8):
        super().__init__()
        bias = RelativeBias(heads)
        self.emb = nn.Embedding(vocab, dim)
        self.block = Block(dim, heads, bias)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.block(self.emb(ids)))


def bucketed_batches(n, seed=0, step=16, longest=192):
    """Pads to a multiple of 16 as our collate function does."""
    rng = random.Random(seed)
    for _ in range(n):
        length = rng.randint(20, longest)
        padded = (length + step - 1) // step * step
        ids = torch.randint(1, 100, (2, padded))
        ids[:, length:] = 0
        yield ids


def main():
    model = LM().to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i, ids in enumerate(bucketed_batches(150)):
        ids = ids.to("cuda")
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 30 == 0:
            print(i, f"{loss.item():.3f}", "lengths known:", len(model.block.bias._cache))


if __name__ == "__main__":
    main()
