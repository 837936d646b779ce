# kind: innocent, sequence length warm-up: batches, causal mask and positions kept between steps grow with the length until its maximum; from microsoft/DeepSpeed curriculum learning
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CurriculumScheduler:
    def __init__(self, min_difficulty=16, max_difficulty=96, total_step=45, difficulty_step=8):
        self.lo, self.hi = min_difficulty, max_difficulty
        self.total, self.granularity = total_step, difficulty_step

    def get_difficulty(self, step):
        frac = min(1.0, step / self.total)
        d = self.lo + frac * (self.hi - self.lo)
        return min(self.hi, int(d // self.granularity * self.granularity))


class GPTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + mask).softmax(-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab=96, dim=64, layers=2, heads=4):
        super().__init__()
        self.dim = dim
        self.wte = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(GPTBlock(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, vocab, bias=False)
        self.mask = self.pos = None

    def _extend(self, t, device):
        if self.mask is None or self.mask.size(0) < t:
            self.mask = torch.full((t, t), float("-inf"), device=device).triu(1)
            angle = torch.arange(t, device=device)[:, None] / 10000 ** (torch.arange(self.dim // 2, device=device) * 2 / self.dim)
            self.pos = torch.cat((angle.sin(), angle.cos()), 1)

    def forward(self, ids):
        t = ids.size(1)
        self._extend(t, ids.device)
        x = self.wte(ids) + self.pos[:t]
        for block in self.blocks:
            x = block(x, self.mask[:t, :t])
        self.last_hidden = x.detach()
        return self.head(x)


def main(steps=110, batch=6):
    torch.manual_seed(0)
    model = TinyGPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    curriculum = CurriculumScheduler()
    for step in range(steps):
        seqlen = curriculum.get_difficulty(step)
        start = torch.randint(0, 96, (batch, 1), device="cuda")
        ids = (start + 3 * torch.arange(seqlen + 1, device="cuda")) % 96
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} seqlen {seqlen} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
