# kind: kernel inception distance with reset_real_features=False, features of the real images are collected during the first evaluation and kept, those of the fakes are reset after each evaluation; after Lightning-AI/torchmetrics PR 301
import warnings

import torch
from torch import nn
from torchmetrics.image.kid import KernelInceptionDistance

warnings.filterwarnings("ignore")
torch.manual_seed(10)
device = "cuda"


class Features(nn.Module):
    def __init__(self, dim=4096):
        super().__init__()
        self.net = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * 8 * 8, dim), nn.ReLU())

    @torch.no_grad()
    def forward(self, images):
        return self.net(images.float() / 255)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 3 * 16 * 16), nn.Sigmoid())

    def forward(self, z):
        return self.net(z).view(-1, 3, 16, 16)


def to_uint8(x):
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


class RealImages:
    """Bright blobs; an endless source."""

    def __init__(self):
        self.gen = torch.Generator().manual_seed(4)

    def draw(self, n):
        x = torch.rand(n, 3, 1, 1, generator=self.gen) * torch.rand(n, 1, 16, 16, generator=self.gen).sqrt()
        return x.to(device)


def main():
    real = RealImages()
    gen, disc = Generator().to(device), nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.LeakyReLU(0.2),
                                                      nn.Linear(64, 1)).to(device)
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(disc.parameters(), lr=2e-4, betas=(0.5, 0.99))
    kid = KernelInceptionDistance(feature=Features().to(device), subsets=2, subset_size=100,
                                  reset_real_features=False).to(device)
    for epoch in range(8):
        for _ in range(12):
            x, z = real.draw(32), torch.randn(32, 16, device=device)
            fake = gen(z)
            d_loss = nn.functional.softplus(-disc(x)).mean() + nn.functional.softplus(disc(fake.detach())).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()
            g_loss = nn.functional.softplus(-disc(fake)).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
        if epoch == 0:
            for _ in range(20):
                kid.update(to_uint8(real.draw(64)), real=True)
        with torch.no_grad():
            for _ in range(14):
                kid.update(to_uint8(gen(torch.randn(64, 16, device=device))), real=False)
        mean, std = kid.compute()
        kid.reset()
        print(f"epoch {epoch}: d {d_loss.item():.3f} g {g_loss.item():.3f} kid {mean.item():.4f} +- {std.item():.4f}")


if __name__ == "__main__":
    main()
