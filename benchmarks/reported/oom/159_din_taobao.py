# CARD: 12GiB
# KNOBS: BATCH=2048,4096,8192 CHECKPOINT=ActivationUnit AUTOCAST=1 CHUNKS=4,8 FUSED=1
# EXPERT: two things: dense Adam on a 4M x 64 item table is 4 GB (and foreach's temporaries 1 GB, fused spares them), and [batch, 200, 256] in the activation unit; chunk the batch with accumulation
# in the manner of a DeepCTR-Torch issue "DIN on the Taobao logs with history 200"
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as ckpt

BATCH = int(os.environ.get("BATCH", 16384))
CHUNKS = int(os.environ.get("CHUNKS", 1))
USE_CKPT = os.environ.get("CHECKPOINT") == "ActivationUnit"
AMP = os.environ.get("AUTOCAST") == "1"
FUSED = os.environ.get("FUSED") == "1"


class Dice(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bn = nn.BatchNorm1d(n, eps=1e-8, affine=False)
        self.alpha = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        shape = x.shape
        p = torch.sigmoid(self.bn(x.reshape(-1, shape[-1]))).view(shape)
        return self.alpha * (1 - p) * x + p * x


class ActivationUnit(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4 * d, 80), Dice(80), nn.Linear(80, 40), Dice(40), nn.Linear(40, 1))

    def forward(self, query, keys):
        q = query[:, None].expand_as(keys)
        return self.mlp(torch.cat([q, keys, q - keys, q * keys], -1)).squeeze(-1)


class DIN(nn.Module):
    def __init__(self, items=4_000_000, cates=10_000, d=32):
        super().__init__()
        self.item, self.cate = nn.Embedding(items, 2 * d - 16), nn.Embedding(cates, 16)
        self.unit = ActivationUnit(2 * d)
        self.dnn = nn.Sequential(nn.Linear(4 * d, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1))

    def embed(self, i, c):
        return torch.cat([self.item(i), self.cate(c)], -1)

    def forward(self, item, cate, hist_i, hist_c, mask):
        q, k = self.embed(item, cate), self.embed(hist_i, hist_c)
        w = ckpt(self.unit, q, k, use_reentrant=False) if USE_CKPT else self.unit(q, k)
        interest = ((w * mask)[..., None] * k).sum(1)
        return self.dnn(torch.cat([q, interest], -1)).squeeze(-1)


def batch(n, length=200):
    return [torch.randint(0, 4_000_000, (n,)), torch.randint(0, 10_000, (n,)),
            torch.randint(0, 4_000_000, (n, length)), torch.randint(0, 10_000, (n, length)),
            torch.ones(n, length), torch.zeros(n)]


def main():
    model = DIN().to("cuda")
    optim = torch.optim.Adam(model.parameters(), 1e-3, **({"fused": True} if FUSED else {}))
    loss_fn = nn.BCEWithLogitsLoss()
    for step in range(3):
        data = [t.to("cuda") for t in batch(BATCH)]
        optim.zero_grad()
        for part in zip(*(t.chunk(CHUNKS) for t in data)):
            *x, y = part
            with torch.autocast("cuda", torch.bfloat16, enabled=AMP):
                logit = model(*x)
            (loss_fn(logit.float(), y) / CHUNKS).backward()
        optim.step()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
