# CARD: 15.78GiB
# KNOBS: LIMIT_SECONDS=0 LAYERS=8 CHUNK=250 SDPA AUTOCAST CHECKPOINT=TransformerLayer,DualBlock OPT FUSED
# EXPERT: the training signals are not cut, and the fourth mixture lasts 14.6 s: 32 transformer layers over 118 chunks of 250 frames, whose attention and feed-forward are kept; the batch is 1; enough: LIMIT_SECONDS=4 (the maintainer's answer) or 10, CHECKPOINT=TransformerLayer or DualBlock, SDPA (no attention weights), LAYERS=4; not enough: AUTOCAST (15.4 GiB, softmax and normalizations stay fp32), CHUNK=150, OPT, FUSED
# after speechbrain/speechbrain issue 985 (https://github.com/speechbrain/speechbrain/issues/985: SepFormer on Libri2Mix, V100 with 16160 MiB, out of memory though batch_size is 1; answer: limit the length of the training signals to 4 seconds)
import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import knobs

LIMIT_SECONDS = float(os.environ.get("LIMIT_SECONDS", 0))
LAYERS = int(os.environ.get("LAYERS", 8))
CHUNK = int(os.environ.get("CHUNK", 250))
SDPA = os.environ.get("SDPA") == "1"
RATE, DIM, HEADS, FFN, SPEAKERS = 8000, 256, 8, 1024, 2
SECONDS = [5.1, 3.4, 6.8, 14.6, 7.7]  # of the first mixtures of the shuffled csv


class LibriMix(Dataset):
    """Mixtures as long as the shorter utterance (mode: min)."""

    def __len__(self):
        return len(SECONDS)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        sources = torch.randn(SPEAKERS, int(SECONDS[i] * RATE), generator=g)
        if LIMIT_SECONDS and sources.shape[1] > LIMIT_SECONDS * RATE:
            n = int(LIMIT_SECONDS * RATE)
            start = int(torch.randint(0, sources.shape[1] - n, (1,), generator=g))
            sources = sources[:, start:start + n]
        return sources.sum(0), sources


class TransformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(DIM, FFN), nn.ReLU(), nn.Linear(FFN, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM, eps=1e-6), nn.LayerNorm(DIM, eps=1e-6)

    def forward(self, x):
        y = self.norm1(x)
        y, attention = self.attn(y, y, y, need_weights=not SDPA)
        x = x + y
        return x + self.ffn(self.norm2(x))


class SBTransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.register_buffer("pos", torch.randn(1, 2500, DIM) * 0.02)

    def forward(self, x):
        y = x + self.pos[:, :x.shape[1]]
        for layer in self.layers:
            y = layer(y)
        return self.norm(y)


class DualBlock(nn.Module):
    """Attention within chunks, then across them; x is (chunks, places, channels)."""

    def __init__(self):
        super().__init__()
        self.intra, self.inter = SBTransformerBlock(), SBTransformerBlock()
        self.norm1, self.norm2 = nn.GroupNorm(1, DIM), nn.GroupNorm(1, DIM)

    def normalize(self, norm, x):
        return norm(x.flatten(0, 1).t()[None])[0].t().view_as(x)

    def forward(self, x):
        x = self.normalize(self.norm1, self.intra(x)) + x
        y = self.inter(x.transpose(0, 1)).transpose(0, 1)
        return self.normalize(self.norm2, y.contiguous()) + x


class SepFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv1d(1, DIM, 16, 8, bias=False)
        self.decoder = nn.ConvTranspose1d(DIM, 1, 16, 8, bias=False)
        self.norm, self.conv = nn.GroupNorm(1, DIM), nn.Conv1d(DIM, DIM, 1)
        self.blocks = nn.ModuleList(DualBlock() for _ in range(2))
        self.spks = nn.Sequential(nn.PReLU(), nn.Linear(DIM, DIM * SPEAKERS))
        self.gate = nn.Linear(DIM, DIM)

    def chunks(self, x):
        """Overlapping by a half: (channels, frames) -> (chunks, places, channels)."""
        x = F.pad(x, (CHUNK // 2, CHUNK // 2 + -x.shape[1] % (CHUNK // 2)))
        return x.unfold(1, CHUNK, CHUNK // 2).permute(1, 2, 0).contiguous()

    def overlap_add(self, x, frames):
        n, k, c = x.shape
        size = (n - 1) * (CHUNK // 2) + CHUNK
        out = F.fold(x.permute(2, 1, 0).reshape(1, c * k, n), (1, size), (1, CHUNK), stride=(1, CHUNK // 2))
        return out[0, :, 0, CHUNK // 2:CHUNK // 2 + frames]

    def forward(self, mixture):
        w = F.relu(self.encoder(mixture[:, None]))
        x = self.chunks(self.conv(self.norm(w))[0])
        for block in self.blocks:
            x = block(x)
        estimates = []
        for x in self.spks(x).chunk(SPEAKERS, -1):
            mask = self.overlap_add(x, w.shape[2])
            mask = F.relu(torch.tanh(mask) * torch.sigmoid(self.gate(mask.t()).t()))
            estimates.append(self.decoder(w * mask)[0, 0])
        est = torch.stack(estimates)
        return F.pad(est, (0, mixture.shape[1] - est.shape[1]))


def si_snr(est, ref):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    ref = (est * ref).sum(-1, keepdim=True) * ref / (ref.square().sum(-1, keepdim=True) + 1e-8)
    return 10 * torch.log10(ref.square().sum(-1) / ((est - ref).square().sum(-1) + 1e-8) + 1e-8)


def pit_loss(est, refs):
    losses = [-si_snr(est, refs[list(p)]).mean() for p in itertools.permutations(range(SPEAKERS))]
    return torch.stack(losses).min()


def main():
    torch.manual_seed(1234)
    model = knobs.apply(SepFormer().cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-4, weight_decay=0)
    model.train()
    for step, (mixture, sources) in enumerate(DataLoader(LibriMix(), batch_size=1)):
        mixture, sources = mixture.cuda(), sources[0].cuda()
        with knobs.autocast():
            est = model(mixture)
        loss = pit_loss(est.float(), sources)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        print(f"step {step} {mixture.shape[1] / RATE:.1f} s, si-snr {loss.item():.2f}, "
              f"peak MiB {torch.cuda.max_memory_allocated() >> 20}", flush=True)


if __name__ == "__main__":
    main()
