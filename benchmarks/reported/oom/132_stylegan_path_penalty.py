# CARD: 7GiB
# KNOBS: BATCH=24 CAPACITY=16 SIZE=128 ACCUM=4 PL_EVERY=32 AUTOCAST CHECKPOINT=GeneratorBlock OPT FUSED
# EXPERT: ordinary steps need 6.1 GiB; at step 5024 the path length penalty differentiates through the generator's backward pass (create_graph) and keeps that graph too, 7.9 GiB, while gradient_accumulate_every does not help; enough: BATCH=16 (with ACCUM=6 for the same total), no or another penalty (PL_EVERY), CAPACITY=8, SIZE=64; not enough: BATCH=20, AUTOCAST (6.8 GiB), OPT, FUSED, CHECKPOINT=DiscriminatorBlock (7.7 GiB); CHECKPOINT=GeneratorBlock makes it worse (10.3 GiB, the double backward keeps what was recomputed)
# after lucidrains/stylegan2-pytorch issue 193 (https://github.com/lucidrains/stylegan2-pytorch/issues/193: image_size 128, network_capacity 16, out of memory at iteration 5024 = 157 * 32, the first one with a path length penalty; there batch_size 8, here 24, resumed at 5022)
import math
import os
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 24))
CAPACITY = int(os.environ.get("CAPACITY", 16))
SIZE = int(os.environ.get("SIZE", 128))
ACCUM = int(os.environ.get("ACCUM", 4))
PL_EVERY = int(os.environ.get("PL_EVERY", 32))
LATENT, STYLE_DEPTH, FMAP_MAX = 512, 8, 512
leaky_relu = partial(F.leaky_relu, negative_slope=0.2)


class StyleVectorizer(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for _ in range(STYLE_DEPTH):
            layers += [nn.Linear(LATENT, LATENT), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers)

    def forward(self, z):
        return self.net(F.normalize(z, dim=1))


class Conv2DMod(nn.Module):
    def __init__(self, i, o, kernel, demod=True):
        super().__init__()
        self.demod, self.kernel = demod, kernel
        self.weight = nn.Parameter(torch.randn(o, i, kernel, kernel) * math.sqrt(2 / (i * kernel * kernel)))

    def forward(self, x, style):
        b, _, h, w = x.shape
        weights = self.weight[None] * (style[:, None, :, None, None] + 1)
        if self.demod:
            weights = weights * torch.rsqrt(weights.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        weights = weights.reshape(-1, *weights.shape[2:])
        out = F.conv2d(x.reshape(1, -1, h, w), weights, padding=(self.kernel - 1) // 2, groups=b)
        return out.reshape(b, -1, h, w)


class GeneratorBlock(nn.Module):
    def __init__(self, i, o, upsample, upsample_rgb):
        super().__init__()
        self.upsample, self.upsample_rgb = upsample, upsample_rgb
        self.to_style1, self.to_style2, self.to_style3 = (nn.Linear(LATENT, n) for n in (i, o, o))
        self.to_noise1, self.to_noise2 = nn.Linear(1, o), nn.Linear(1, o)
        self.conv1, self.conv2 = Conv2DMod(i, o, 3), Conv2DMod(o, o, 3)
        self.to_rgb = Conv2DMod(o, 3, 1, demod=False)

    def forward(self, x, rgb, style, inoise):
        if self.upsample:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        noise = inoise[:, :x.shape[2], :x.shape[3]]
        x = leaky_relu(self.conv1(x, self.to_style1(style)) + self.to_noise1(noise).permute(0, 3, 1, 2))
        x = leaky_relu(self.conv2(x, self.to_style2(style)) + self.to_noise2(noise).permute(0, 3, 1, 2))
        new = self.to_rgb(x, self.to_style3(style))
        rgb = new if rgb is None else rgb + new
        if self.upsample_rgb:
            rgb = F.interpolate(rgb, scale_factor=2, mode="bilinear", align_corners=False)
        return x, rgb


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        n = int(math.log2(SIZE) - 1)
        filters = [min(FMAP_MAX, CAPACITY * 2 ** (i + 1)) for i in range(n)][::-1]
        filters = [filters[0], *filters]
        self.initial = nn.Parameter(torch.randn(1, filters[0], 4, 4))
        self.blocks = nn.ModuleList(GeneratorBlock(filters[i], filters[i + 1], i > 0, i < n - 1) for i in range(n))

    def forward(self, styles, noise):
        x, rgb = self.initial.expand(len(styles), -1, -1, -1), None
        for i, block in enumerate(self.blocks):
            x, rgb = block(x, rgb, styles[:, i], noise)
        return rgb


class DiscriminatorBlock(nn.Module):
    def __init__(self, i, o, down):
        super().__init__()
        self.res = nn.Conv2d(i, o, 1, stride=2 if down else 1)
        self.net = nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.LeakyReLU(0.2),
                                 nn.Conv2d(o, o, 3, padding=1), nn.LeakyReLU(0.2))
        self.down = nn.Conv2d(o, o, 3, padding=1, stride=2) if down else nn.Identity()

    def forward(self, x):
        return (self.down(self.net(x)) + self.res(x)) / math.sqrt(2)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        n = int(math.log2(SIZE) - 1)
        filters = [3] + [min(FMAP_MAX, CAPACITY * 4 * 2 ** i) for i in range(n + 1)]
        self.blocks = nn.Sequential(*(DiscriminatorBlock(filters[i], filters[i + 1], i < n) for i in range(n + 1)))
        self.head = nn.Linear(filters[-1] * 4, 1)

    def forward(self, x):
        return self.head(self.blocks(x).flatten(1)).squeeze(1)


def gradient_penalty(images, output, weight=10):
    grads, = torch.autograd.grad(output.sum(), images, create_graph=True)
    return weight * (grads.flatten(1).norm(2, dim=1) - 1).square().mean()


def path_lengths(styles, images):
    noise = torch.randn_like(images) / math.sqrt(images.shape[2] * images.shape[3])
    grads, = torch.autograd.grad((images * noise).sum(), styles, create_graph=True)
    return grads.square().sum(2).mean(1).sqrt()


class Trainer:
    def __init__(self):
        self.S, self.G, self.D = (knobs.apply(m.cuda()) for m in (StyleVectorizer(), Generator(), Discriminator()))
        params = [*self.S.parameters(), *self.G.parameters()]
        self.g_opt = torch.optim.Adam(params, lr=2e-4, betas=(0.5, 0.9))
        self.d_opt = torch.optim.Adam(self.D.parameters(), lr=4e-4, betas=(0.5, 0.9))
        self.steps, self.pl_mean = 5021, 0.0

    def fake(self):
        layers = len(self.G.blocks)
        styles = self.S(torch.randn(BATCH, LATENT, device="cuda"))[:, None].expand(-1, layers, -1)
        noise = torch.rand(BATCH, SIZE, SIZE, 1, device="cuda")
        return styles, self.G(styles, noise)

    def train(self):
        self.steps += 1
        penalize, path = self.steps % 4 == 0, self.steps > 5000 and self.steps % PL_EVERY == 0
        self.d_opt.zero_grad()
        for _ in range(ACCUM):
            with knobs.autocast():
                _, images = self.fake()
                real = torch.rand(BATCH, 3, SIZE, SIZE, device="cuda").requires_grad_()
                fake_out, real_out = self.D(images.detach()), self.D(real)
                loss = (F.relu(1 + real_out) + F.relu(1 - fake_out)).mean()
                if penalize:
                    loss = loss + gradient_penalty(real, real_out)
            (loss / ACCUM).backward()
        self.d_opt.step()

        self.g_opt.zero_grad()
        for _ in range(ACCUM):
            with knobs.autocast():
                styles, images = self.fake()
                loss = self.D(images).mean()
                if path:
                    lengths = path_lengths(styles, images)
                    loss = loss + (lengths - self.pl_mean).square().mean()
                    self.pl_mean = lengths.detach().mean()
            (loss / ACCUM).backward()
        self.g_opt.step()
        print(f"step {self.steps} G {loss.item():.2f} peak MiB {torch.cuda.max_memory_allocated() >> 20}")


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer()
    for _ in range(5):
        trainer.train()
