# kind: an autoencoder with a codebook trains alone at first, the perceptual loss comes in at step 12 and the discriminator with its optimizer at step 30, codes that nobody uses are restarted from a reservoir of encoder outputs of fixed size; from CompVis/taming-transformers questions on disc_start (out of memory only after some steps)
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class Codebook(nn.Module):
    def __init__(self, codes=128, dim=16, decay=0.95):
        super().__init__()
        self.register_buffer("table", torch.randn(codes, dim))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", self.table.clone())
        self.decay = decay

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        ids = torch.cdist(flat, self.table).argmin(1)
        q = self.table[ids].view(z.shape[0], *z.shape[2:], -1).permute(0, 3, 1, 2)
        if self.training:
            self._ema(flat.detach(), ids)
        return z + (q - z).detach(), F.mse_loss(z, q.detach()), flat.detach()

    @torch.no_grad()
    def _ema(self, flat, ids):
        onehot = F.one_hot(ids, len(self.table)).float()
        self.count.lerp_(onehot.sum(0), 1 - self.decay)
        self.total.lerp_(onehot.t() @ flat, 1 - self.decay)
        self.table.copy_(self.total / self.count.clamp(min=1e-3)[:, None])

    @torch.no_grad()
    def restart(self, samples):
        dead = (self.count < 0.05).nonzero()[:, 0]
        if len(dead) and samples is not None:
            self.table[dead] = samples[torch.randint(0, len(samples), (len(dead),), device=samples.device)]
            self.count[dead], self.total[dead] = 1.0, self.table[dead]
        return len(dead)


class Autoencoder(nn.Module):
    def __init__(self, width=24, dim=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, dim, 4, 2, 1))
        self.quant = Codebook(dim=dim)
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(dim, width, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1))

    def forward(self, x):
        q, commit, flat = self.quant(self.enc(x))
        return self.dec(q), commit, flat


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torchvision.models.vgg11(weights=None).features[:7].eval().requires_grad_(False)

    def forward(self, a, b):
        return F.l1_loss(self.features(a), self.features(b))


def patch_discriminator(width=48):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 1, 3, 1, 1))


class Losses:
    def __init__(self, perceptual_start=12, disc_start=30):
        self.perceptual_start, self.disc_start = perceptual_start, disc_start
        self.perceptual = self.disc = self.disc_opt = None

    def autoencoder(self, step, x, y):
        loss = F.l1_loss(y, x)
        if step >= self.perceptual_start:
            if self.perceptual is None:
                self.perceptual = Perceptual().cuda()
            loss = loss + 0.1 * self.perceptual(y, x)
        if step >= self.disc_start:
            if self.disc is None:
                self.disc = patch_discriminator().cuda()
                self.disc_opt = torch.optim.Adam(self.disc.parameters(), lr=2e-4, betas=(0.5, 0.9))
            loss = loss - 0.02 * self.disc(y).mean()
        return loss

    def discriminator(self, step, x, y):
        if step < self.disc_start:
            return
        loss = F.relu(1 - self.disc(x)).mean() + F.relu(1 + self.disc(y.detach())).mean()
        self.disc_opt.zero_grad()
        loss.backward()
        self.disc_opt.step()


def images(batch, side=32):
    while True:
        low = torch.rand(batch, 3, 4, 4)
        yield F.interpolate(low, size=side, mode="bilinear").cuda()


def main(steps=100, reservoir_size=4096):
    torch.manual_seed(0)
    model, losses = Autoencoder().cuda(), Losses()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    reservoir = None
    for step, x in zip(range(steps), images(4)):
        y, commit, flat = model(x)
        loss = losses.autoencoder(step, x, y) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.discriminator(step, x, y)
        reservoir = flat if reservoir is None else torch.cat([reservoir, flat])[-reservoir_size:].clone()
        if step % 10 == 9:
            dead = model.quant.restart(reservoir)
        if step % 20 == 19:
            print(f"{step}: l1 {F.l1_loss(y, x).item():.3f}, {dead} codes restarted")


if __name__ == "__main__":
    main()
