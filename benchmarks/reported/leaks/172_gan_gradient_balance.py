# kind: a hook on the fake images scales their gradient by a mask computed from the very images, the closure and the tensor hold each other through the C++ graph where the collector cannot look; after chr5tphr/zennit PR 13 and jacobgil/pytorch-grad-cam issue 88
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
Z = 32
BATCH = 24
STEPS = 90


class Generator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.start = nn.Linear(Z, width * 8 * 8)
        self.body = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width // 2, 3, padding=1), nn.BatchNorm2d(width // 2), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(width // 2, 3, 3, padding=1), nn.Tanh())

    def forward(self, z):
        return self.body(self.start(z).view(z.size(0), -1, 8, 8))


class Discriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 4, 2, 1))

    def forward(self, x):
        return self.net(x).mean((1, 2, 3))


def soften_saturated(images, strength=4.0):
    """Less gradient where the tanh is saturated, so that the generator does
    not fight over pixels that are black or white already."""

    def scale(grad):
        weight = torch.exp(-strength * images.detach().abs().pow(8))
        return grad * weight / weight.mean()

    images.register_hook(scale)  # LEAK
    return images


class Trainer:
    def __init__(self):
        self.g = Generator().to(DEVICE)
        self.d = Discriminator().to(DEVICE)
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.99))

    def step_d(self, real):
        with torch.no_grad():
            fake = self.g(torch.randn(real.size(0), Z, device=DEVICE))
        loss = F.softplus(self.d(fake)).mean() + F.softplus(-self.d(real)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def step_g(self):
        fake = soften_saturated(self.g(torch.randn(BATCH, Z, device=DEVICE)))
        loss = F.softplus(-self.d(fake)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()


def real_batch():
    centre = torch.rand(BATCH, 2, 1, 1) * 2 - 1
    axis = torch.linspace(-1, 1, 32)
    distance = (axis.view(1, 1, -1) - centre[:, 0]) ** 2 + (axis.view(1, -1, 1) - centre[:, 1]) ** 2
    disc = torch.tanh(6 * (0.3 - distance)).unsqueeze(1)
    return disc.expand(-1, 3, -1, -1).contiguous().to(DEVICE)


def main():
    torch.manual_seed(0)
    trainer = Trainer()
    for step in range(1, STEPS + 1):
        loss_d = trainer.step_d(real_batch())
        loss_g = trainer.step_g()
        if step % 15 == 0:
            print(f"{step:3d}  D {loss_d:.3f}  G {loss_g:.3f}")


if __name__ == "__main__":
    main()
