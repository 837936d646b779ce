# CARD: 24GiB
# KNOBS: BATCH=32 CHECKPOINT=ConformerBlock AUTOCAST
# EXPERT: 32 x 8 x 1000 x 1000 attention scores in 12 blocks for 40 s utterances; smaller batch, checkpointing, autocast
# CHECKPOINT=1: each block recomputed in backward; AUTOCAST=1: fp16 autocast with a GradScaler
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class RelMultiHeadAttention(nn.Module):
    def __init__(self, d, h, max_len=2000):
        super().__init__()
        self.h, self.dk = h, d // h
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.rel_bias = nn.Embedding(2 * max_len - 1, h)
        self.max_len = max_len

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)
        pos = torch.arange(t, device=x.device)
        bias = self.rel_bias(pos[:, None] - pos[None, :] + self.max_len - 1).permute(2, 0, 1)
        scores = q @ k.transpose(-1, -2) / self.dk ** 0.5 + bias
        attn = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.out((attn @ v).transpose(1, 2).reshape(b, t, d))


class ConvModule(nn.Module):
    def __init__(self, d, kernel=15):
        super().__init__()
        self.pw1, self.pw2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)

    def forward(self, x):
        x = F.glu(self.pw1(x.transpose(1, 2)), dim=1)
        return self.pw2(F.silu(self.bn(self.dw(x)))).transpose(1, 2)


def feed_forward(d):
    return nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d))


class ConformerBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ff1, self.ff2 = feed_forward(d), feed_forward(d)
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.conv = RelMultiHeadAttention(d, h), ConvModule(d)

    def forward(self, x):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attn(self.n1(x))
        x = x + self.conv(self.n2(x))
        return self.n3(x + 0.5 * self.ff2(x))


class ConformerCTC(nn.Module):
    def __init__(self, mels=80, d=256, h=8, layers=12, vocab=1000, recompute=False):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(mels, d, 3, 2, 1), nn.ReLU(), nn.Conv1d(d, d, 3, 2, 1), nn.ReLU())
        self.blocks = nn.ModuleList(ConformerBlock(d, h) for _ in range(layers))
        self.ctc = nn.Linear(d, vocab)
        self.recompute = recompute

    def forward(self, feats):
        x = self.sub(feats.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.ctc(x).float().log_softmax(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=int(os.environ.get("BATCH", 32)))
    parser.add_argument("--frames", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    amp = os.environ.get("AUTOCAST", "0") == "1"
    torch.manual_seed(0)
    model = ConformerCTC(recompute=os.environ.get("CHECKPOINT", "") not in ("", "0")).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for step in range(args.steps):
        feats = torch.randn(args.batch_size, args.frames, 80, device="cuda")
        targets = torch.randint(1, 1000, (args.batch_size, 120), device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=amp):
            logp = model(feats)
        lengths = torch.full((args.batch_size,), logp.size(1), dtype=torch.long)
        target_lengths = torch.full((args.batch_size,), 120, dtype=torch.long)
        loss = F.ctc_loss(logp.transpose(0, 1), targets, lengths, target_lengths, zero_infinity=True)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} ctc {loss.item():.3f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
