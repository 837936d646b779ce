# CARD: 24GiB
# KNOBS: BATCH=4 SEQ=512 EXPERTS=16 CHECKPOINT=Block AUTOCAST DTYPE OPT FUSED
# EXPERT: 1.7e9 fp32 parameters, gradients and two Adam moments are 25.3 GiB, the default (foreach) step adds 6 GiB of temporaries; dies in the first optimizer.step(); enough: OPT=adafactor, OPT=sgd, DTYPE=bf16, EXPERTS=8; not enough: BATCH=1, SEQ=256, CHECKPOINT=Block, AUTOCAST (no effect at all on the peak), FUSED (only the temporaries go: 25.6 GiB)
# Source: laekov/fastmoe 209 (pretrain_gpt with FMoE layers on a single GPU: CUDA out of memory at the start); accelerate
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

import knobs

BATCH = int(os.environ.get("BATCH", 4))
SEQ = int(os.environ.get("SEQ", 512))
EXPERTS = int(os.environ.get("EXPERTS", 16))
DIM, LAYERS, HEADS, VOCAB, TOP_K = 1024, 12, 16, 32000, 2


class MoE(nn.Module):
    """Top-2 gating with a capacity for each expert; tokens beyond it are dropped."""

    def __init__(self, dim, hidden, experts, factor=1.25):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) * 0.02)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) * 0.02)
        self.experts, self.factor = experts, factor

    def forward(self, x):
        b, t, d = x.shape
        x = x.reshape(-1, d)
        n = x.shape[0]
        capacity = int(self.factor * TOP_K * n / self.experts)
        probs = self.gate(x).float().softmax(-1)
        weight, expert = probs.topk(TOP_K, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        onehot = F.one_hot(expert.flatten(), self.experts)
        slot = (onehot.cumsum(0) * onehot).sum(-1) - 1
        keep = slot < capacity
        index = expert.flatten() * capacity + slot.clamp(0, capacity - 1)
        buffer = x.new_zeros(self.experts * capacity, d)
        buffer = buffer.index_add(0, index, x.repeat_interleave(TOP_K, 0) * keep[:, None])
        h = torch.bmm(buffer.view(self.experts, capacity, d), self.w1)
        h = torch.bmm(F.gelu(h), self.w2).view(-1, d)
        out = h[index] * (weight.flatten() * keep)[:, None].to(h.dtype)
        balance = self.experts * (probs.mean(0) * onehot.float().view(n, TOP_K, -1).sum(1).mean(0)).sum()
        return out.view(n, TOP_K, d).sum(1).view(b, t, d), balance


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.moe = MoE(DIM, 4 * DIM, EXPERTS)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        y, balance = self.moe(self.ln2(x))
        return x + y, balance


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids, labels):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        balance = 0.0
        for block in self.blocks:
            x, aux = block(x)
            balance = balance + aux
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB).float(), labels[:, 1:].reshape(-1))
        return loss + 0.01 * balance


class Tokens(Dataset):
    def __len__(self):
        return BATCH * 4

    def __getitem__(self, i):
        return torch.randint(VOCAB, (SEQ,), generator=torch.Generator().manual_seed(i))


def main():
    torch.manual_seed(0)
    accelerator = Accelerator()
    with torch.device("cuda"):
        model = GPT()
    knobs.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Tokens(), batch_size=BATCH))
    accelerator.print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    for step, ids in enumerate(loader):
        with knobs.autocast():
            loss = model(ids, ids)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
