# kind: the relative positional table is extended whenever a longer utterance comes and stops at the longest one; after espnet RelPositionalEncoding.extend_pe
import math
import random

import torch
from torch import nn
import torch.nn.functional as F


class RelPositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        self.d_model = d_model
        self.pe = None
        self.extend_pe(torch.zeros(1, max_len, device="cuda"))

    def extend_pe(self, x):
        if self.pe is not None and self.pe.size(1) >= x.size(1) * 2 - 1:
            return
        length = x.size(1)
        position = torch.arange(length - 1, -length, -1.0, device=x.device).unsqueeze(1)
        div = torch.exp(torch.arange(0, self.d_model, 2.0, device=x.device) * -(math.log(10000.0) / self.d_model))
        pe = torch.zeros(2 * length - 1, self.d_model, device=x.device)
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.pe = pe.unsqueeze(0)

    def forward(self, x):
        self.extend_pe(x)
        mid = self.pe.size(1) // 2
        return self.pe[:, mid - x.size(1) + 1: mid + x.size(1)]


class ConformerLite(nn.Module):
    def __init__(self, mels=40, dim=64, vocab=30):
        super().__init__()
        self.inp = nn.Linear(mels, dim)
        self.pos = RelPositionalEncoding(dim)
        self.pos_proj = nn.Linear(dim, 1)
        self.conv = nn.Conv1d(dim, dim, 15, padding=7, groups=dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, feats):
        x = self.inp(feats)
        t = x.size(1)
        rel = self.pos_proj(self.pos(x))[0, :, 0]
        index = torch.arange(t, device=x.device)
        bias = rel[(index[None] - index[:, None]) + t - 1]
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.out(x).log_softmax(-1)


def main():
    random.seed(4)
    torch.manual_seed(0)
    model = ConformerLite().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    utterances = [random.randint(40, 700) for _ in range(40)]
    for epoch in range(3):
        random.shuffle(utterances)
        for frames in utterances:
            frames = frames // 4
            feats = torch.randn(2, frames, 40, device="cuda")
            target = torch.randint(1, 30, (2, 8), device="cuda")
            logp = model(feats).transpose(0, 1)
            loss = F.nll_loss(logp[:8].reshape(-1, 30), target.t().reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


main()
