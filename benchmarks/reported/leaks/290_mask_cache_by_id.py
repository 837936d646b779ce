# kind: attention masks cached under id() of the batch, entries never found again; in the manner of a code-review post "added a cache and it got slower and bigger"
import torch
from torch import nn


class PackedMask:
    """block-diagonal mask of documents packed in one row"""

    _cache = {}

    def __init__(self, doc_ids):
        self.doc_ids = doc_ids
        same = doc_ids[:, :, None] == doc_ids[:, None, :]
        causal = torch.ones(same.shape[-1], same.shape[-1], dtype=torch.bool, device=doc_ids.device).tril()
        self.bias = torch.zeros(same.shape, device=doc_ids.device).masked_fill_(~(same & causal), float("-inf"))

    @classmethod
    def of(cls, doc_ids):
        key = id(doc_ids)
        hit = cls._cache.get(key)
        if hit is None:
            hit = cls._cache[key] = cls(doc_ids)  # LEAK
        return hit.bias


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.heads = heads

    def forward(self, x, doc_ids):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2)) * (d // self.heads) ** -0.5 + PackedMask.of(doc_ids)[:, None]
        x = x + self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class PackedLM(nn.Module):
    def __init__(self, vocab=200, d=48, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(depth))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids, doc_ids):
        x = self.emb(ids)
        for blk in self.blocks:
            x = blk(x, doc_ids)
        return self.head(x)


def packed_batches(n, b=4, t=64):
    for _ in range(n):
        yield torch.randint(0, 200, (b, t + 1)), (torch.rand(b, t) < 0.05).cumsum(1)


def main():
    torch.manual_seed(0)
    lm = PackedLM().cuda()
    opt = torch.optim.AdamW(lm.parameters(), 1e-3)
    for ids, docs in packed_batches(150):
        ids, docs = ids.cuda(), docs.cuda()
        loss = nn.functional.cross_entropy(lm(ids[:, :-1], docs).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())


main()
