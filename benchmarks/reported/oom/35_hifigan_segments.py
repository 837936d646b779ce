# CARD: 16GiB
# KNOBS: BATCH=16 SEGMENT=32768 AUTOCAST CHECKPOINT=MRF,ResBlock,DiscriminatorP,DiscriminatorS OPT FUSED
# EXPERT: 32768-sample segments: the multi-receptive-field blocks of the last upsampling stages run at full sample rate with 64 and 32 channels, the generator's graph lives together with five period and three scale discriminators that see real and generated audio; shorter segments (8192) or a smaller batch, bf16 autocast; checkpointing only the MRF blocks or another optimizer is not enough
# Source: people raising segment_size (jik876/hifi-gan 8192) or training at 44.1 kHz and running out (jik876/hifi-gan issues on CUDA out of memory, batch_size/segment_size advice); written by hand
import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

import knobs

BATCH = int(os.environ.get("BATCH", 16))
SEGMENT = int(os.environ.get("SEGMENT", 32768))
HOP, MELS, STEPS = 256, 80, 3
LRELU = 0.1


class ResBlock(nn.Module):
    def __init__(self, ch, k, dilations=(1, 3, 5)):
        super().__init__()
        self.convs1 = nn.ModuleList(weight_norm(nn.Conv1d(ch, ch, k, dilation=d, padding=d * (k - 1) // 2)) for d in dilations)
        self.convs2 = nn.ModuleList(weight_norm(nn.Conv1d(ch, ch, k, padding=(k - 1) // 2)) for _ in dilations)

    def forward(self, x):
        for a, b in zip(self.convs1, self.convs2):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, LRELU)), LRELU))
        return x


class MRF(nn.Module):
    def __init__(self, ch, kernels=(3, 7, 11)):
        super().__init__()
        self.blocks = nn.ModuleList(ResBlock(ch, k) for k in kernels)

    def forward(self, x):
        return sum(b(x) for b in self.blocks) / len(self.blocks)


class Generator(nn.Module):
    def __init__(self, ch=512, rates=(8, 8, 2, 2), kernels=(16, 16, 4, 4)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(MELS, ch, 7, padding=3))
        self.ups, self.mrfs = nn.ModuleList(), nn.ModuleList()
        for r, k in zip(rates, kernels):
            self.ups.append(weight_norm(nn.ConvTranspose1d(ch, ch // 2, k, r, padding=(k - r) // 2)))
            ch //= 2
            self.mrfs.append(MRF(ch))
        self.post = weight_norm(nn.Conv1d(ch, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, mrf in zip(self.ups, self.mrfs):
            x = mrf(up(F.leaky_relu(x, LRELU)))
        return torch.tanh(self.post(F.leaky_relu(x)))


class DiscriminatorP(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        chans = [1, 32, 128, 512, 1024]
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in zip(chans, chans[1:]))
        self.convs.append(weight_norm(nn.Conv2d(1024, 1024, (5, 1), 1, (2, 0))))
        self.post = weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        b, c, t = x.shape
        if t % self.period:
            x = F.pad(x, (0, self.period - t % self.period), "reflect")
        x = x.view(b, c, -1, self.period)
        fmap = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), LRELU)
            fmap.append(x)
        x = self.post(x)
        fmap.append(x)
        return x.flatten(1), fmap


class DiscriminatorS(nn.Module):
    def __init__(self):
        super().__init__()
        spec = [(1, 128, 15, 1, 1, 7), (128, 128, 41, 2, 4, 20), (128, 256, 41, 2, 16, 20), (256, 512, 41, 4, 16, 20),
                (512, 1024, 41, 4, 16, 20), (1024, 1024, 41, 1, 16, 20), (1024, 1024, 5, 1, 1, 2)]
        self.convs = nn.ModuleList(weight_norm(nn.Conv1d(i, o, k, s, groups=g, padding=p)) for i, o, k, s, g, p in spec)
        self.post = weight_norm(nn.Conv1d(1024, 1, 3, padding=1))

    def forward(self, x):
        fmap = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), LRELU)
            fmap.append(x)
        x = self.post(x)
        fmap.append(x)
        return x.flatten(1), fmap


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.mpd = nn.ModuleList(DiscriminatorP(p) for p in (2, 3, 5, 7, 11))
        self.msd = nn.ModuleList(DiscriminatorS() for _ in range(3))
        self.pool = nn.AvgPool1d(4, 2, padding=2)

    def forward(self, y):
        outs = [d(y) for d in self.mpd]
        for i, d in enumerate(self.msd):
            if i:
                y = self.pool(y)
            outs.append(d(y))
        return outs


class MelLoss(nn.Module):
    def __init__(self, n_fft=1024):
        super().__init__()
        self.n_fft = n_fft
        t = torch.arange(n_fft) * torch.arange(n_fft // 2 + 1).unsqueeze(1) * (2 * torch.pi / n_fft)
        self.register_buffer("basis", (torch.cat([t.cos(), t.sin()]) * torch.hann_window(n_fft)).unsqueeze(1))
        self.register_buffer("bank", torch.rand(MELS, n_fft // 2 + 1))

    def mel(self, y):
        re, im = F.conv1d(F.pad(y, (self.n_fft // 2,) * 2), self.basis, stride=HOP).chunk(2, 1)
        spec = (re.float() ** 2 + im.float() ** 2 + 1e-9).sqrt()
        return torch.log(torch.clamp(self.bank @ spec, min=1e-5))

    def forward(self, a, b):
        return F.l1_loss(self.mel(a), self.mel(b))


def feature_loss(real, fake):
    return 2 * sum(F.l1_loss(g, r.detach()) for (_, fr), (_, fg) in zip(real, fake) for r, g in zip(fr, fg))


def main():
    gen, disc, mel_loss = knobs.apply(Generator().cuda()), knobs.apply(Multi().cuda()), MelLoss().cuda()
    opt_g = torch.optim.AdamW(gen.parameters(), lr=2e-4, betas=(0.8, 0.99))
    opt_d = torch.optim.AdamW(itertools.chain(disc.mpd.parameters(), disc.msd.parameters()), lr=2e-4, betas=(0.8, 0.99))
    for step in range(STEPS):
        mel = torch.zeros(BATCH, MELS, SEGMENT // HOP).cuda()
        y = torch.zeros(BATCH, 1, SEGMENT).cuda()
        with knobs.autocast():
            fake = gen(mel)
        opt_d.zero_grad()
        with knobs.autocast():
            loss_d = sum(((1 - r) ** 2).mean() + (g ** 2).mean() for (r, _), (g, _) in zip(disc(y), disc(fake.detach())))
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        with knobs.autocast():
            real_out, fake_out = disc(y), disc(fake)
            loss_g = 45 * mel_loss(fake, y) + feature_loss(real_out, fake_out) + sum(((1 - g) ** 2).mean() for g, _ in fake_out)
        loss_g.backward()
        opt_g.step()
        print(f"step {step} d {loss_d.item():.3f} g {loss_g.item():.3f}")
    print("PEAK", torch.cuda.max_memory_allocated())


main()
