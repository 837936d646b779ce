# CARD: 24GiB
# KNOBS: BATCH=16 SIZE=256 AUTOCAST CHECKPOINT=ResnetBlock,AttnBlock OPT FUSED
# EXPERT: encoder and decoder have 128 channels at 256x256 with two or three residual blocks per level and their GroupNorm/SiLU outputs, the perceptual network and the discriminator come on top of the same graph; batch 8 or less with accumulation, checkpoint the residual blocks; bf16 autocast alone is not enough, the optimizer does not matter
# Source: VQGAN f16 at 256 px needing a batch of 2 or 3 on 12 GB (CompVis/taming-transformers issues on CUDA out of memory and batch size); written by hand with Lightning and manual optimization
import logging
import os
import warnings

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset

import knobs

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
BATCH, SIZE = int(os.environ.get("BATCH", 16)), int(os.environ.get("SIZE", 256))


def norm(c):
    return nn.GroupNorm(32, c, eps=1e-6)


class ResnetBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.conv1 = norm(cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = norm(cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.short = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.short(x) + h


class AttnBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.qkv, self.out = norm(c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        a = torch.softmax(torch.bmm(q.transpose(1, 2), k) * c ** -0.5, -1)
        return x + self.out(torch.bmm(v, a.transpose(1, 2)).view(b, c, h, w))


class Encoder(nn.Module):
    def __init__(self, ch=128, mult=(1, 1, 2, 2, 4), z=256):
        super().__init__()
        seq, c = [nn.Conv2d(3, ch, 3, padding=1)], ch
        for i, m in enumerate(mult):
            for _ in range(2):
                seq.append(ResnetBlock(c, ch * m))
                c = ch * m
                if i == len(mult) - 1:
                    seq.append(AttnBlock(c))
            if i < len(mult) - 1:
                seq.append(nn.Conv2d(c, c, 3, 2, 1))
        self.net = nn.Sequential(*seq, ResnetBlock(c, c), AttnBlock(c), ResnetBlock(c, c), norm(c), nn.SiLU(), nn.Conv2d(c, z, 3, padding=1))

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self, ch=128, mult=(1, 1, 2, 2, 4), z=256):
        super().__init__()
        c = ch * mult[-1]
        seq = [nn.Conv2d(z, c, 3, padding=1), ResnetBlock(c, c), AttnBlock(c), ResnetBlock(c, c)]
        for i, m in reversed(list(enumerate(mult))):
            for _ in range(3):
                seq.append(ResnetBlock(c, ch * m))
                c = ch * m
                if i == len(mult) - 1:
                    seq.append(AttnBlock(c))
            if i:
                seq += [nn.Upsample(scale_factor=2.0), nn.Conv2d(c, c, 3, padding=1)]
        self.net = nn.Sequential(*seq, norm(c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, z):
        return self.net(z)

    @property
    def last_layer(self):
        return self.net[-1].weight


class VectorQuantizer(nn.Module):
    def __init__(self, n=16384, dim=256, beta=0.25):
        super().__init__()
        self.embedding, self.beta = nn.Embedding(n, dim), beta

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c).float()
        e = self.embedding.weight
        d = flat.pow(2).sum(1, keepdim=True) + e.pow(2).sum(1) - 2 * flat @ e.t()
        q = self.embedding(d.argmin(1)).view(b, h, w, c).permute(0, 3, 1, 2)
        loss = self.beta * (q.detach() - z).pow(2).mean() + (q - z.detach()).pow(2).mean()
        return z + (q - z).detach(), loss


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        f = torchvision.models.vgg16(weights=None).features
        self.stages = nn.ModuleList([f[:4], f[4:9], f[9:16], f[16:23], f[23:30]])
        self.requires_grad_(False).eval()

    def forward(self, x, y):
        total = 0
        for s in self.stages:
            x, y = s(x), s(y)
            total = total + (F.normalize(x, dim=1) - F.normalize(y, dim=1)).pow(2).mean()
        return total


def patch_discriminator(ndf=64):
    seq, c = [nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)], ndf
    for m, s in ((2, 2), (4, 2), (8, 1)):
        seq += [nn.Conv2d(c, ndf * m, 4, s, 1, bias=False), nn.BatchNorm2d(ndf * m), nn.LeakyReLU(0.2, True)]
        c = ndf * m
    return nn.Sequential(*seq, nn.Conv2d(c, 1, 4, 1, 1))


class VQGAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder, self.decoder, self.quantize = Encoder(), Decoder(), VectorQuantizer()
        self.perceptual, self.disc = Perceptual(), patch_discriminator()

    def adaptive_weight(self, rec, gan):
        last = self.decoder.last_layer
        a = torch.autograd.grad(rec, last, retain_graph=True)[0]
        b = torch.autograd.grad(gan, last, retain_graph=True)[0]
        return (a.norm() / (b.norm() + 1e-4)).clamp(0, 1e4).detach() * 0.8

    def training_step(self, x, i):
        opt_ae, opt_d = self.optimizers()
        with knobs.autocast():
            q, code_loss = self.quantize(self.encoder(x))
            xrec = self.decoder(q)
            rec = (x - xrec).abs().mean() + self.perceptual(x, xrec)
            gan = -self.disc(xrec).mean()
        loss = rec + self.adaptive_weight(rec, gan) * gan + code_loss
        opt_ae.zero_grad()
        self.manual_backward(loss)
        opt_ae.step()
        with knobs.autocast():
            real, fake = self.disc(x.detach()), self.disc(xrec.detach())
            d_loss = 0.5 * (F.relu(1 - real).mean() + F.relu(1 + fake).mean())
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        print("step", i, "ae", loss.item(), "d", d_loss.item())

    def configure_optimizers(self):
        ae = [*self.encoder.parameters(), *self.decoder.parameters(), *self.quantize.parameters()]
        return [torch.optim.Adam(ae, lr=4.5e-6, betas=(0.5, 0.9)), torch.optim.Adam(self.disc.parameters(), lr=4.5e-6, betas=(0.5, 0.9))], []


class Faces(Dataset):
    def __len__(self):
        return 3 * BATCH

    def __getitem__(self, i):
        return torch.zeros(3, SIZE, SIZE)


if __name__ == "__main__":
    model = knobs.apply(VQGAN())
    trainer = pl.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(Faces(), BATCH))
    print("PEAK", torch.cuda.max_memory_allocated())
