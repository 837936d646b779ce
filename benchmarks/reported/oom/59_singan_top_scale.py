# CARD: 12GiB
# KNOBS: MAX_SIZE=1024 NFC=128 LAYERS=5 LAMBDA_GRAD=0.1 AUTOCAST CHECKPOINT=ConvBlock,WDiscriminator OPT FUSED
# EXPERT: the coarse scales fit; at the finest one an activation of 128 channels x 1024 x 1024 is 0.5 GiB, and the generator's step keeps two passes of the generator (fake and reconstruction) and one of the discriminator, the discriminator's step the double backward of the gradient penalty; the batch is 1 image; a finest scale of 800 px, 64 channels or bf16 autocast; no gradient penalty, one layer less, checkpointing the blocks or the discriminator or another optimizer is not enough
# Source: tamarott/SinGAN 141 (out of memory in gradients_penalty.backward() after small additions to the model), 154 (out of memory at scale 5 on an A100); written by hand
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

parser = argparse.ArgumentParser()
parser.add_argument("--nfc", type=int, default=int(os.environ.get("NFC", 128)), help="channels at the finest scale")
parser.add_argument("--num_layer", type=int, default=int(os.environ.get("LAYERS", 5)))
parser.add_argument("--max_size", type=int, default=int(os.environ.get("MAX_SIZE", 1024)))
parser.add_argument("--min_size", type=int, default=25)
parser.add_argument("--scale_factor", type=float, default=0.6)
parser.add_argument("--lambda_grad", type=float, default=float(os.environ.get("LAMBDA_GRAD", 0.1)))
parser.add_argument("--alpha", type=float, default=10)
parser.add_argument("--Dsteps", type=int, default=3)
parser.add_argument("--Gsteps", type=int, default=3)
parser.add_argument("--niter", type=int, default=1)
opt = parser.parse_args()


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(cin, cout, 3), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Body(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.head = ConvBlock(3, n)
        self.body = nn.Sequential(*[ConvBlock(n, n) for _ in range(opt.num_layer - 2)])


class WDiscriminator(Body):
    def __init__(self, n):
        super().__init__(n)
        self.tail = nn.Conv2d(n, 1, 3)

    def forward(self, x):
        return self.tail(self.body(self.head(x)))


class Generator(Body):
    def __init__(self, n):
        super().__init__(n)
        self.tail = nn.Sequential(nn.Conv2d(n, 3, 3), nn.Tanh())

    def forward(self, z, prev):
        y = self.tail(self.body(self.head(z)))
        cut = (prev.shape[2] - y.shape[2]) // 2
        return y + prev[:, :, cut:prev.shape[2] - cut, cut:prev.shape[3] - cut]


def gradient_penalty(netD, real, fake):
    a = torch.rand(1, 1, device="cuda").expand(real.size())
    mix = (a * real + (1 - a) * fake).requires_grad_(True)
    score = netD(mix)
    grad, = torch.autograd.grad(score, mix, grad_outputs=torch.ones_like(score), create_graph=True, retain_graph=True, only_inputs=True)
    return ((grad.norm(2, dim=1) - 1) ** 2).mean() * opt.lambda_grad


def pyramid():
    sizes, s = [], float(opt.max_size)
    while s >= opt.min_size:
        sizes.append(int(s))
        s *= opt.scale_factor
    return sizes[::-1]


def resize(x, s):
    return F.interpolate(x, size=(s, s), mode="bicubic", align_corners=False)


def draw(Gs, sizes, noisy, pad):
    """the image below the current scale, from the trained (frozen) generators"""
    x = torch.zeros(1, 3, sizes[0], sizes[0], device="cuda")
    for G, s in zip(Gs, sizes):
        x = F.pad(resize(x, s), [pad] * 4)
        z = (0.1 * torch.randn_like(x) if noisy else torch.zeros_like(x)) + x
        x = G(z, x).detach()
    return x


photo = torch.rand(1, 3, opt.max_size, opt.max_size, device="cuda") * 2 - 1
sizes, Gs, pad = pyramid(), [], opt.num_layer
print("scales", sizes)
for scale, size in enumerate(sizes):
    nfc = min(opt.nfc, 32 * 2 ** (scale // 4) if scale < len(sizes) - 1 else opt.nfc)
    netD, netG = knobs.apply(WDiscriminator(nfc).cuda()), knobs.apply(Generator(nfc).cuda())
    real = resize(photo, size)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=5e-4, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=5e-4, betas=(0.5, 0.999))
    for epoch in range(opt.niter):
        for _ in range(opt.Dsteps):
            netD.zero_grad()
            prev = F.pad(resize(draw(Gs, sizes, True, pad), size), [pad] * 4)
            with knobs.autocast():
                errD_real = -netD(real).mean()
                fake = netG(0.1 * torch.randn_like(prev) + prev, prev)
                errD_fake = netD(fake.detach()).mean()
            errD_real.backward()
            errD_fake.backward()
            if opt.lambda_grad:
                with knobs.autocast():
                    gp = gradient_penalty(netD, real, fake.detach().float())
                gp.backward()
            optimizerD.step()
        for _ in range(opt.Gsteps):
            netG.zero_grad()
            with knobs.autocast():
                fake = netG(0.1 * torch.randn_like(prev) + prev, prev)
                errG = -netD(fake).mean()
                rec_in = F.pad(resize(draw(Gs, sizes, False, pad), size), [pad] * 4)
                rec = opt.alpha * F.mse_loss(netG(rec_in, rec_in).float(), real)
            (errG + rec).backward()
            optimizerG.step()
    for q in netG.parameters():
        q.requires_grad_(False)
    Gs.append(netG.eval())
    del netD, optimizerD, optimizerG
    print(f"scale {scale} ({size} px, {nfc} channels): errD {errD_real.item():.3f} rec {rec.item():.3f}")
